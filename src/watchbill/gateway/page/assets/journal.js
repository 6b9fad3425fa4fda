// The journal and the alerts: every decision with its reason, searched on the daemon's disk.

import { call } from "./api.js";
import { button, el, empty, mark, panel, Rows, say } from "./dom.js";
import { bytes, duration, moment, plural } from "./format.js";
import { live, tint, touches } from "./live.js";

const SHOWN_MAX = 300;
/** Of a message that has not all lines: more than a screen at once cannot be read. */
const HASTE_MAX = 20;
/** So many stay while lines come too fast to be read. */
const KEPT_IN_HASTE = 40;
const SEEN = "watchbill.alerts";

function seenUntil() {
  try { return Number(sessionStorage.getItem(SEEN) ?? 0); } catch { return 0; }
}

export function journalView() {
  const { section, head } = panel("Journal", "journal");
  const search = el("input", { type: "search", id: "journal-search", placeholder: "Search: a model, a reason, a request", "aria-label": "Search the journal" });
  const hours = el("select", { "aria-label": "How far back" }, [["1", "last hour"], ["24", "last day"], ["168", "last week"]].map(([value, text]) => el("option", { value, selected: value === "24" }, text)));
  const note = el("p", { class: "why", role: "status" });
  const list = el("ol", { class: "journal" });
  const none = empty("Nothing was found.");
  head.append(el("div", { class: "filters" }, search, hours));
  section.append(note, list, none);
  let fresh = [], most = SHOWN_MAX, turn = 0, timer = 0, isLive = true;

  /** New lines come on top; those that are there stay as they are. */
  function draw() {
    list.prepend(...fresh.slice(-SHOWN_MAX).reverse().map(entry));
    while (list.childElementCount > most) list.lastElementChild.remove();
    fresh = [];
    mark(none, "hidden", list.childElementCount > 0);
  }

  async function read() {
    const mine = ++turn, text = search.value.trim();
    isLive = !text;
    try {
      const found = await call("GET", `wb/v1/journal?lines=${SHOWN_MAX}&hours=${hours.value}&text=${encodeURIComponent(text)}`);
      if (mine !== turn) return;
      [fresh, most] = [found.lines.reverse(), SHOWN_MAX];
      list.replaceChildren();
      say(note, text ? `${plural(fresh.length, "line")}${found.whole ? "" : ", and there may be older ones"}` : "");
    } catch (error) {
      if (mine === turn) say(note, error.message);
    }
    draw();
  }

  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(read, 250); });
  hours.addEventListener("change", read);
  live.addEventListener("begun", () => view.isShown && read());
  live.addEventListener("journal", ({ detail }) => {
    if (!view.isShown || !isLive) return;
    live.changed.add("journal"); // drawn with this message, also where nothing else changed
    const shown = detail.missed ? detail.journal.slice(-HASTE_MAX) : detail.journal;
    most = detail.missed ? KEPT_IN_HASTE : SHOWN_MAX;
    fresh = fresh.concat(shown).slice(-most);
    const missed = detail.missed + detail.journal.length - shown.length;
    if (missed) say(note, `${plural(missed, "line")} came too fast to be shown; a search finds them`);
  });
  const view = {
    section, isShown: false,
    enter() { view.isShown = true; read(); },
    leave() { view.isShown = false; },
    update() { if (fresh.length) draw(); },
    focus() { search.focus(); },
  };
  return view;
}

function entry(line) {
  const facts = [line.ms === null ? "" : duration(line.ms), line.bytes === null ? "" : bytes(line.bytes), line.request ?? ""];
  const model = line.model ? el("span", { class: "of" }, el("i", { class: "dot", "aria-hidden": "true" }), line.model) : null;
  if (model) tint(model, line.model);
  return el(
    "li", { "data-event": line.event }, el("time", { datetime: line.t }, moment(Date.parse(line.t))),
    el("span", { class: "event" }, line.event), el("span", { class: "of-cell" }, model ?? line.device ?? ""),
    el("span", { class: "said" }, line.reason), el("span", { class: "facts" }, facts.filter(Boolean).join(" · ")),
  );
}

export function alertsView() {
  const { section, head } = panel("Alerts", "alerts");
  let dismissed = seenUntil();
  head.append(button("Dismiss", () => {
    dismissed = Math.max(0, ...[...live.table("alerts").values()].map((row) => row.t));
    try { sessionStorage.setItem(SEEN, String(dismissed)); } catch { /* until the page is loaded again */ }
    section.hidden = true;
    document.getElementById("main").focus({ preventScroll: true });
  }, { class: "small quiet", "aria-label": "Dismiss these alerts" }));
  const list = el("ul", { class: "alerts" });
  section.append(list);
  const rows = new Rows(list, () => {
    const kind = el("strong"), text = el("span"), when = el("time");
    return {
      element: el("li", {}, when, kind, text),
      update(row) {
        say(kind, row.kind.replaceAll("_", " "));
        say(text, row.text);
        say(when, moment(row.t * 1000));
      },
    };
  });
  return {
    section,
    update(changed) {
      if (!touches(changed, "alerts")) return;
      const found = [...live.table("alerts")].filter(([, row]) => row.t > dismissed).sort(([, a], [, b]) => b.t - a.t).slice(0, 8);
      rows.show(found);
      section.hidden = !found.length;
    },
  };
}
