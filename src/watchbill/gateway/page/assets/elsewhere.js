// What is not in every config: spools, tiers, leases of peers, programs beside the daemon, batches.

import { act, call } from "./api.js";
import { button, el, empty, mark, panel, Rows, say } from "./dom.js";
import { bytes, duration, number, plural } from "./format.js";
import { live, touches } from "./live.js";

export function spoolsView() {
  const { section } = panel("Spools", "spools");
  const list = el("div", { class: "cards" });
  const events = el("div", { class: "poison", hidden: true });
  section.append(list, events);
  const rows = new Rows(list, spool);
  let shown = "";

  function spool(name) {
    const facts = el("p", { class: "why" }), complaint = el("p", { class: "trouble", hidden: true });
    const waiting = el("strong", { class: "depth" }), poison = el("span", { class: "unit" });
    const inspect = button("Poison", () => look(name), { class: "small", "aria-label": `Poisoned events of ${name}` });
    return {
      element: el("article", { class: "card" }, el("h3", {}, name), el("p", { class: "sum" }, waiting, poison), facts, complaint, inspect),
      update(row) {
        say(waiting, number(row.waiting));
        say(poison, `waiting · ${number(row.leased)} in flight`);
        say(facts, `${plural(row.appended, "event")} drained · ${plural(row.duplicates, "duplicate")} · ${number(row.poison)} in poison`);
        say(complaint, row.complaint);
        mark(complaint, "hidden", !row.complaint);
        mark(inspect, "disabled", !live.admin || !row.poison);
        if (shown === name) look(name);
      },
    };
  }

  async function look(name) {
    shown = name;
    try {
      const found = await call("GET", `wb/v1/spools/${encodeURIComponent(name)}/poison`);
      if (shown !== name) return;
      events.hidden = !found.total;
      const all = button("Requeue all", () => again(name), { class: "small" });
      const head = el("div", { class: "panel-head" }, el("h3", {}, `Poison of ${name}: ${plural(found.total, "event")}`), all);
      events.replaceChildren(head, ...found.events.map((event) => poisoned(name, event)));
    } catch (error) {
      events.hidden = false;
      events.replaceChildren(empty(error.message));
    }
  }

  async function again(name, event) {
    await act("Requeue", "POST", `wb/v1/spools/${encodeURIComponent(name)}/requeue`, event ? { event } : {});
    await look(name);
  }

  function poisoned(name, event) {
    const text = el("pre", { class: "log", tabindex: "0", "aria-label": `Content of ${event.event}` }, event.content);
    const summary = el("summary", {}, el("code", {}, event.event), " ", el("span", { class: "why" }, event.reason ?? ""));
    const back = button("Requeue", () => again(name, event.event), { class: "small", "aria-label": `Requeue ${event.event}` });
    const facts = el("p", { class: "why" }, `${bytes(event.bytes)} · ${duration(event.age_ms)} old · attempt ${event.attempt}`);
    return el("details", {}, summary, facts, text, back);
  }

  return {
    section,
    update(changed) {
      if (touches(changed, "spools")) rows.show([...live.table("spools")]);
    },
  };
}

export function tiersView() {
  const { section } = panel("Tiers", "tiers");
  const list = el("div", { class: "cards" });
  section.append(list);
  const rows = new Rows(list, (name) => {
    const kind = el("span", { class: "tags" }), facts = el("p", { class: "why" }), models = el("p", {}), trouble = el("p", { class: "trouble" });
    return {
      element: el("article", { class: "card" }, el("div", { class: "lane-head" }, el("h3", {}, name), kind), models, facts, trouble),
      update(row) {
        say(kind, row.enabled ? row.tier : `${row.tier}, off`);
        say(models, Object.entries(row.models).map(([model, state]) => `${model} (${state})`).join(", "));
        const money = row.daily === null ? `cost ${row.spent_today.toFixed(2)} today` : `cost ${row.spent_today.toFixed(2)} of ${row.daily.toFixed(2)} today`;
        say(facts, `${plural(row.in_flight, "request")} there · ${number(row.queued)} waiting${row.tier === "peer" ? "" : ` · ${money}`}`);
        say(trouble, row.closed ? "its daily limit is reached" : row.reason ?? "");
        mark(trouble, "hidden", !(row.closed || row.reason));
      },
    };
  });
  return {
    section,
    update(changed) {
      if (touches(changed, "tiers")) rows.show([...live.table("tiers")]);
    },
  };
}

export function leasesView() {
  const { section } = panel("Leases of peers", "leases");
  const list = el("div", { class: "cards" });
  section.append(list);
  const rows = new Rows(list, () => {
    const peer = el("h3"), text = el("p", { class: "why" });
    return {
      element: el("article", { class: "card" }, peer, text),
      update(row) {
        say(peer, row.peer);
        say(text, `${row.model} · ${row.resting ? "rests while a person works here" : "may work here"}`);
      },
    };
  });
  return {
    section,
    update(changed) {
      if (!touches(changed, "leases")) return;
      rows.show([...live.table("leases")]);
      section.hidden = !live.table("leases").size;
    },
  };
}

/** What the daemon does by itself: rotation, batches, programs. */
export function daemonView() {
  const { section } = panel("Beside the requests", "daemon");
  const list = el("dl", {});
  section.append(list);
  const rows = new Rows(list, (name) => {
    const value = el("dd");
    return { element: el("div", {}, el("dt", {}, name), value), update(text) { say(value, text); } };
  });
  return {
    section,
    update(changed) {
      if (!touches(changed, "facts", "programs", "epochs")) return;
      const found = facts();
      rows.show(found);
      section.hidden = !found.length;
    },
  };
}

function facts() {
  const found = [], { rotation, batches, policy, policy_doubt: doubt, policy_failure: failure } = live.facts;
  if (rotation?.interval_ms && rotation.next_model) {
    const when = rotation.running ? `${rotation.running} has its turn` : `${rotation.next_model} next, in ${duration((rotation.next_at ?? 0) - live.now())}`;
    found.push(["Rotation", `${when} · every ${duration(rotation.interval_ms)}`]);
  }
  if (batches && (batches.open || batches.ended)) {
    const paused = batches.paused ? ` · paused: ${batches.paused.replaceAll("_", " ")}` : "";
    found.push(["Batches", `${plural(batches.open, "batch", "batches")} open · ${number(batches.waiting)} lines wait · ${number(batches.answered)} answered${paused}`]);
  }
  for (const [name, row] of live.table("programs")) {
    found.push([name, row.pid ? `runs, pid ${row.pid}${row.starts > 1 ? `, started ${row.starts} times` : ""}` : `does not run: ${row.last_end}`]);
  }
  for (const [name, row] of live.table("epochs")) {
    found.push([`Epoch ${name}`, row.open ? `open for ${row.models.join(", ")}` : `opens in ${duration((row.next_at ?? 0) - live.now())}`]);
  }
  if (doubt) found.push(["Policy", `${policy}, for now turns because ${doubt}`]);
  if (failure) found.push(["Policy failed", failure]);
  return found;
}
