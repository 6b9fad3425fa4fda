// Models: what is in memory, what waits for it, and what an operator can do about it.

import { act, part } from "./api.js";
import { button, el, empty, LongRows, mark, panel, say } from "./dom.js";
import { explainModel, showLog } from "./dialogs.js";
import { bytes, duration, number } from "./format.js";
import { live, tint, touches } from "./live.js";

const WORDS = {
  absent: "not in memory", planned: "comes next", loading: "loading", ready: "in memory", draining: "leaving",
  stopping: "leaving", asleep: "asleep", failed: "cannot be loaded", quarantined: "quarantined",
};
const ORDER = ["ready", "loading", "draining", "stopping", "planned", "asleep", "quarantined", "failed", "absent"];

export function modelsView() {
  const { section, head, heading } = panel("Models", "models");
  const search = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter models", oninput: () => show() });
  const list = el("ul", { class: "rows models" });
  const none = empty("No model matches.");
  const count = el("span", { class: "count" });
  heading.append(" ", count);
  head.append(search);
  section.append(list, none);
  const rows = new LongRows(list, model);

  function show() {
    const text = search.value.trim().toLowerCase();
    const all = [...live.table("models")];
    const found = all.filter(([name]) => name.toLowerCase().includes(text));
    found.sort(([, a], [, b]) => rank(a) - rank(b));
    rows.show(found.map(([name, row]) => [name, row]));
    say(count, number(all.length));
    mark(search, "hidden", all.length < 8);
    mark(none, "hidden", found.length > 0);
  }

  return {
    section,
    update(changed) {
      if (touches(changed, "models")) show();
    },
    tick() {
      rows.tick();
    },
  };
}

const rank = (row) => ORDER.indexOf(row.state) + (row.queued ? -0.5 : 0);

function model(name) {
  const parts = {
    name: el("h3", {}, name), state: el("span", { class: "state" }), size: el("span", { class: "size" }),
    load: el("span", { class: "load" }), why: el("p", { class: "why" }), tags: el("span", { class: "tags" }),
  };
  const hand = {
    load: button("Load", () => change(name, "load", "Load"), { class: "small", "aria-label": `Load ${name}` }),
    evict: button("Unload", () => change(name, "evict", "Unload"), { class: "small", "aria-label": `Unload ${name}` }),
    pin: button("Pin", () => pin(name), { class: "small quiet", "aria-label": `Pin ${name}` }),
    why: button("Why?", () => explainModel(name), { class: "small quiet", "aria-label": `Explain ${name}` }),
    log: button("Log", () => showLog(name), { class: "small quiet", "aria-label": `Log of ${name}` }),
  };
  const element = el(
    "li", { class: "model" }, el("i", { class: "dot", "aria-hidden": "true" }),
    el("div", { class: "what" }, el("div", { class: "title" }, parts.name, parts.state, parts.tags), parts.why),
    el("div", { class: "sums" }, parts.size, parts.load), el("div", { class: "hand" }, ...Object.values(hand)),
  );
  tint(element, name);
  let row = null;
  const self = {
    element,
    update(value) {
      row = value;
      mark(element, "data-state", row.state);
      say(parts.state, WORDS[row.state] ?? row.state);
      say(parts.size, row.tier === "local" ? bytes(row.measured ?? row.memory) : row.tier);
      mark(parts.size, "title", row.measured ? "measured" : "expected");
      const sums = [row.in_flight ? `${number(row.in_flight)} running` : "", row.queued ? `${number(row.queued)} waiting` : ""];
      say(parts.load, sums.filter(Boolean).join(" · "));
      const tags = [row.pinned ? "pinned" : row.permanent ? "permanent" : "", row.leased ? `leased: ${row.leased}` : "", row.trouble ?? ""];
      say(parts.tags, tags.filter(Boolean).join(" · "));
      const resident = ["ready", "draining", "stopping", "loading", "asleep"].includes(row.state);
      mark(hand.load, "hidden", resident || row.tier !== "local");
      mark(hand.evict, "hidden", !resident || row.tier !== "local");
      mark(hand.pin, "hidden", row.tier !== "local" || (row.permanent && !row.pinned));
      say(hand.pin, row.pinned ? "Unpin" : "Pin");
      mark(hand.pin, "aria-label", `${row.pinned ? "Unpin" : "Pin"} ${name}`);
      mark(hand.log, "hidden", row.tier !== "local");
      for (const each of [hand.load, hand.evict, hand.pin, hand.log]) {
        mark(each, "disabled", !live.admin);
        mark(each, "title", live.admin ? null : "needs an admin key");
      }
      self.tick();
    },
    tick() {
      if (row) say(parts.why, reason(row));
    },
  };
  return self;
}

function reason(row) {
  const now = live.now();
  if (row.retry_at && row.retry_at > now) return `${row.reason ?? ""} · tried again in ${duration(row.retry_at - now)}`;
  if (row.state === "ready" && row.idle_at) return `idle, leaves in ${duration(row.idle_at - now)}`;
  if (row.state === "loading") return `takes about ${duration(row.load_ms)}`;
  return row.reason ?? "";
}

async function change(name, verb, word) {
  const row = live.table("models").get(name);
  const force = verb === "evict" && row?.permanent ? { force: true } : {};
  await act(`${word} ${name}`, "POST", `wb/v1/models/${part(name)}/${verb}`, force);
}

async function pin(name) {
  const pinned = !live.table("models").get(name)?.pinned;
  await act(`Pin ${name}`, "POST", `wb/v1/models/${part(name)}/pin`, { pinned });
}
