// Requests and lanes: who waits, for how long and why; who is answered, and how fast.

import { act } from "./api.js";
import { button, el, empty, mark, panel, QueueRows, Rows, say, svg } from "./dom.js";
import { explainRequest } from "./dialogs.js";
import { duration, number, ordinal, plural } from "./format.js";
import { live, tint, touches } from "./live.js";

/** Few at first: every row that moves costs a layout, and the rest is one click away. */
const SHOWN_FIRST = 24;
const SHOWN_MAX = 100;
const MINUTE_MS = 60_000;

export function requestsView() {
  const { section, heading } = panel("Requests", "requests");
  const list = el("ul", { class: "rows requests" });
  const none = empty("No request waits.");
  const rest = el("span"), all = button("Show more", () => { most = SHOWN_MAX; draw(); }, { class: "small quiet" });
  const more = el("p", { class: "more", hidden: true }, rest, " ", all);
  let most = SHOWN_FIRST;
  const count = el("span", { class: "count" });
  heading.append(" ", count);
  section.append(list, none, more);
  const rows = new QueueRows(list, request);

  function draw() {
    const found = [...live.table("requests")];
    found.sort(([, a], [, b]) => (a.state === b.state ? turn(a) - turn(b) : a.state === "running" ? -1 : 1));
    const open = live.facts.open ?? found.length;
    rows.show(found.slice(0, most));
    say(count, number(open));
    mark(none, "hidden", open > 0);
    const hidden = open - Math.min(found.length, most);
    say(rest, `and ${plural(hidden, "further request")}`);
    mark(all, "hidden", found.length <= most);
    mark(more, "hidden", hidden <= 0);
  }

  return {
    section,
    update(changed) {
      if (touches(changed, "requests", "facts")) draw();
    },
    tick() {
      rows.tick();
    },
  };
}

/** When its turn came or is forecast; without a forecast it is behind those with one, in order of arrival. */
const turn = (row) => row.started_at ?? row.starts_at ?? row.arrived_at + 1e12;

function request() {
  const name = el("h3"), place = el("span", { class: "state" }), times = el("p", { class: "why" });
  const speed = el("span", { class: "speed" });
  const cancel = button("Cancel", () => act("Cancel", "DELETE", `wb/v1/requests/${encodeURIComponent(id)}`), { class: "small" });
  const why = button("Why?", () => explainRequest(id), { class: "small quiet" });
  const element = el(
    "li", { class: "request" }, el("i", { class: "dot", "aria-hidden": "true" }),
    el("div", { class: "what" }, el("div", { class: "title" }, name, place), times),
    el("div", { class: "sums" }, speed), el("div", { class: "hand" }, why, cancel),
  );
  let row = null, id = "";
  const self = {
    element,
    update(value, key) {
      [row, id] = [value, key];
      say(name, row.model);
      tint(element, row.model);
      mark(element, "data-state", row.state);
      const before = row.position ? `${number(row.position)} before it` : "next";
      say(place, row.state === "running" ? "running" : `${ordinal(row.position + 1)} in line`);
      mark(place, "title", row.state === "running" ? null : before);
      say(speed, row.tokens_per_s ? `${row.tokens_per_s} tokens/s` : "");
      mark(cancel, "aria-label", `Cancel the request ${id} for ${row.model}`);
      mark(why, "aria-label", `Why does the request ${id} for ${row.model} wait`);
      say(why, row.state === "running" ? "Details" : "Why?");
      mark(cancel, "disabled", !live.admin);
      mark(cancel, "title", live.admin ? null : "needs an admin key");
      self.tick();
    },
    tick() {
      if (row) say(times, told(row));
    },
  };
  return self;
}

function told(row) {
  const now = live.now(), said = [row.lane];
  if (row.state === "running") said.push(`for ${duration(now - row.started_at)}`, `waited ${duration(row.started_at - row.arrived_at)}`);
  else {
    said.push(`waits ${duration(now - row.arrived_at)}`);
    if (row.starts_at) said.push(row.starts_at > now ? `starts in about ${duration(row.starts_at - now)}` : "starts soon");
  }
  if (row.tokens) said.push(plural(row.tokens, "token"));
  return said.join(" · ");
}

export function lanesView() {
  const { section } = panel("Lanes", "lanes");
  const list = el("ul", { class: "lanes" });
  section.append(list);
  const rows = new Rows(list, lane);
  return {
    section,
    update(changed) {
      if (touches(changed, "lanes")) rows.show([...live.table("lanes")]);
    },
    tick() {
      rows.tick();
    },
  };
}

function lane(name) {
  const depth = el("strong", { class: "depth" }), unit = el("span", { class: "unit" });
  const facts = el("p", { class: "why" }), path = svg("path", { class: "spark" });
  const drawing = svg("svg", { viewBox: "0 0 120 28", preserveAspectRatio: "none", "aria-hidden": "true" }, path);
  const element = el(
    "li", { class: "lane" }, el("div", { class: "lane-head" }, el("h3", {}, name), el("span", { class: "tags" })),
    el("p", { class: "sum" }, depth, unit), drawing, facts,
  );
  const kind = element.querySelector(".tags");
  const depths = [], done = [];
  let row = null;
  const self = {
    element,
    update(value) {
      row = value;
      say(kind, row.class);
      self.note();
      self.tell();
    },
    note() {
      const now = performance.now();
      done.push([now, row.answered]);
      while (done.length > 2 && now - done[0][0] > MINUTE_MS) done.shift();
    },
    tick() {
      if (!row) return;
      self.note();
      depths.push(row.queued);
      if (depths.length > 120) depths.shift();
      const most = Math.max(4, ...depths);
      const points = depths.map((each, n) => `${120 - (depths.length - 1 - n)},${(26 - (24 * each) / most).toFixed(1)}`);
      path.setAttribute("d", `M${points.join("L")}`);
      self.tell();
    },
    tell() {
      say(depth, number(row.queued));
      say(unit, `waiting · ${number(row.running)} running`);
      const span = done.at(-1)[0] - done[0][0];
      const rate = span > 2000 ? ((done.at(-1)[1] - done[0][1]) * MINUTE_MS) / span : 0;
      const oldest = row.queued ? `oldest ${duration(live.now() - row.oldest_at)}` : "";
      say(facts, [oldest, `${rate < 10 ? rate.toFixed(1) : Math.round(rate)} answers a minute`].filter(Boolean).join(" · "));
    },
  };
  return self;
}

/** The daemon in five figures. */
export function summaryView() {
  const section = el("dl", { class: "summary", "aria-label": "Summary" });
  const cells = new Map();
  for (const name of ["In memory", "Running", "Waiting", "Oldest wait", "Tokens per second"]) {
    const value = el("dd"), note = el("small");
    value.append("", note);
    section.append(el("div", {}, el("dt", {}, name), value));
    cells.set(name, (text, beside = "") => {
      if (value.firstChild.data !== text) value.firstChild.data = text;
      say(note, beside);
    });
  }

  function show() {
    const models = [...live.table("models").values()].filter((row) => row.tier === "local");
    const requests = [...live.table("requests").values()], lanes = [...live.table("lanes").values()];
    const resident = models.filter((row) => row.state === "ready" || row.state === "draining").length;
    const running = models.reduce((sum, row) => sum + row.in_flight, 0);
    const oldest = Math.min(...lanes.map((row) => row.oldest_at ?? Infinity));
    cells.get("In memory")(number(resident), `of ${plural(models.length, "model")}`);
    cells.get("Running")(number(running));
    cells.get("Waiting")(number(lanes.reduce((sum, row) => sum + row.queued, 0)));
    cells.get("Oldest wait")(oldest === Infinity ? "–" : duration(live.now() - oldest));
    const speed = requests.reduce((sum, row) => sum + (row.state === "running" ? row.tokens_per_s ?? 0 : 0), 0);
    cells.get("Tokens per second")(speed ? speed.toFixed(1) : "–");
  }

  return { section, update: show, tick: show };
}
