// The timeline: which model was in memory when, and why it came and left. Made of the journal, so it survives restarts.

import { call } from "./api.js";
import { button, el, empty, mark, panel, Rows, say, style } from "./dom.js";
import { bytes, clock, day, duration, moment } from "./format.js";
import { live, tint, touches } from "./live.js";

const SPANS = [["10 min", 6e5], ["1 h", 36e5], ["6 h", 216e5], ["24 h", 864e5]];
const DAY_MS = 864e5;
const BARS_MAX = 12_000;
/** The drawing moves to the left in steps: each one paints all of it again. */
const SHIFT_PX = 3;
const ENDS = new Set(["stopped", "lost", "died", "reset", "load_failed", "quarantine", "disk_failed"]);
const FAILED = new Set(["died", "reset", "load_failed", "quarantine", "stuck", "disk_failed"]);
const MOVES = new Set(["start", "load", "wake", "loaded", "awake", "reopen", "asleep", "evict", "stuck", ...ENDS]);
const isMove = (line) => MOVES.has(line.event);
const WORDS = { loading: "loading", resident: "in memory", draining: "leaving", asleep: "asleep" };

/** Bars of residency, made of the journal's lines in their order. */
export class Residency {
  constructor() {
    this.bars = new Map(); // model -> bars, the oldest first
    this.starts = []; // of daemons
    this.count = 0;
    this.last = 0;
  }

  take(line) {
    const at = Date.parse(line.t);
    if (Number.isNaN(at)) return;
    this.last = Math.max(this.last, at);
    if (line.event === "start") this.restart(at);
    else if (line.model) this.move(line, at);
  }

  restart(at) {
    this.starts.push(at);
    for (const bars of this.bars.values()) this.close(bars, at, "the daemon was restarted");
  }

  move(line, at) {
    const bars = this.of(line.model);
    const known = bars.at(-1);
    switch (line.event) {
      case "load": case "wake": this.open(bars, "loading", at, line); break;
      case "loaded": case "awake": this.open(bars, "resident", at, line); break;
      case "reopen": this.open(bars, "resident", at, line); break;
      case "asleep": this.open(bars, "asleep", at, line); break;
      case "evict":
        if (!known) bars.push({ kind: "resident", from: at - DAY_MS, to: null, why: "" });
        this.open(bars, "draining", at, line);
        break;
      case "stuck": if (known) known.failed = true; break;
      default: if (ENDS.has(line.event)) this.close(bars, at, line.reason, FAILED.has(line.event));
    }
  }

  of(model) {
    if (!this.bars.has(model)) this.bars.set(model, []);
    return this.bars.get(model);
  }

  open(bars, kind, at, line) {
    const before = bars.at(-1);
    const why = kind === "resident" && before?.kind === "loading" && before.to === null ? before.why : line.reason;
    this.close(bars, at, line.reason);
    bars.push({ kind, from: at, to: null, why, bytes: line.bytes, ms: line.ms });
    if (++this.count > BARS_MAX) this.forget();
  }

  close(bars, at, why, failed = false) {
    const bar = bars.at(-1);
    if (!bar || bar.to !== null) return;
    bar.to = Math.max(at, bar.from);
    bar.left = why;
    bar.failed = failed;
  }

  forget() {
    const since = this.last - DAY_MS;
    this.count = 0;
    for (const [model, bars] of this.bars) {
      const kept = bars.filter((bar) => bar.to === null || bar.to > since).slice(-2000);
      if (kept.length) this.bars.set(model, kept);
      else this.bars.delete(model);
      this.count += kept.length;
    }
  }
}

export function timelineView() {
  const { section, head } = panel("Timeline", "timeline");
  const spans = el("div", { class: "switch", role: "group", "aria-label": "Span of the timeline" });
  const axis = el("div", { class: "axis", "aria-hidden": "true" });
  const list = el("div", { class: "lines" });
  const marks = el("div", { class: "marks", "aria-hidden": "true" }, el("div", {}));
  const none = empty("No model has been in memory during this time.");
  const tip = el("div", { class: "tip", role: "status", hidden: true });
  section.append(el("div", { class: "timeline" }, axis, marks, list, none), tip);
  head.append(spans);
  const view = { section, span: SPANS[1][1], chosen: false, residency: new Residency(), base: 0, waiting: [], ready: false };
  const moved = new Set(); // models of which something was heard since the last drawing
  const lines = new Map(); // model -> its bars as they were drawn
  let shifted = 0; // the part of the span by which the drawing was moved to the left
  const choices = SPANS.map(([text, ms]) => button(text, () => { view.chosen = true; choose(ms); }));
  spans.append(...choices);
  const rows = new Rows(list, (model) => line(model, tip));

  function choose(ms) {
    view.span = ms;
    choices.forEach((each, n) => mark(each, "aria-pressed", String(SPANS[n][1] === ms)));
    hide(tip);
    draw();
  }

  function draw() {
    const now = wall();
    view.base = now - view.span;
    shifted = 0;
    shift();
    axis.replaceChildren(...ticks(view.base, now));
    marks.replaceChildren(...view.residency.starts.filter((at) => at > view.base).map((at) => started(at, view.base, view.span)));
    lines.clear();
    moved.clear();
    show(now);
  }

  function shift() {
    for (const row of rows.rows.values()) row.shift(shifted);
  }

  /** Only the lines that changed are made anew: the others are where they were. */
  function show(now) {
    const order = [...live.table("models").keys()];
    const shown = [...view.residency.bars].filter(([, bars]) => bars.some((bar) => (bar.to ?? now) > view.base));
    shown.sort(([a], [b]) => place(order, a) - place(order, b) || a.localeCompare(b));
    for (const [model, bars] of shown) {
      if (moved.has(model) || !lines.has(model)) lines.set(model, visible(bars, view.base, view.span, now));
    }
    moved.clear();
    rows.show(shown.map(([model]) => [model, lines.get(model)]));
    shift();
    mark(none, "hidden", shown.length > 0 || !view.ready);
    rove(list);
  }

  async function read() {
    view.ready = false;
    view.residency = new Residency();
    try {
      const found = await call("GET", "wb/v1/journal?about=residency&hours=24&lines=5000");
      found.lines.reverse().forEach((each) => view.residency.take(each));
      const last = found.lines.at(-1)?.t ?? "";
      view.waiting.filter((each) => each.t > last).forEach((each) => view.residency.take(each));
    } catch { /* the stream shows that the daemon is away; it is read again when it is back */ }
    view.waiting = [];
    view.ready = true;
    const first = Math.min(...[...view.residency.bars.values()].map((bars) => bars[0].from));
    if (view.chosen) draw();
    else choose((SPANS.find(([, ms]) => wall() - first < ms) ?? SPANS[2])[1]);
  }

  const gone = () => (wall() - view.span - view.base) / view.span;
  const isOld = () => gone() > 0.02;

  live.addEventListener("begun", read);
  live.addEventListener("journal", ({ detail }) => {
    for (const each of detail.journal.filter(isMove)) {
      live.changed.add("journal"); // drawn with this message, also where nothing else changed
      if (view.ready) view.residency.take(each);
      else view.waiting.push(each);
      if (each.model) moved.add(each.model);
      else view.base = 0; // a start of the daemon ends the bars of every model
    }
  });
  list.addEventListener("pointerover", (event) => point(event.target, tip));
  list.addEventListener("pointerleave", () => hide(tip));
  list.addEventListener("focusin", (event) => point(event.target, tip));
  list.addEventListener("focusout", () => hide(tip));
  list.addEventListener("keydown", (event) => walk(event, list, tip));
  choose(view.span);
  return Object.assign(view, {
    update(changed) {
      if (touches(changed) || isOld()) draw();
      else if (moved.size) show(wall());
    },
    tick() {
      if (isOld()) return draw();
      if ((gone() - shifted) * innerWidth < SHIFT_PX) return;
      shifted = gone();
      shift();
    },
  });
}

const wall = () => live.now() + live.wallOffset;
const place = (order, model) => (order.includes(model) ? order.indexOf(model) : order.length);

/** The bars inside the window; those too near to be told apart are drawn as one. */
function visible(bars, base, span, now) {
  const least = span / 900, found = [];
  for (const bar of bars) {
    if ((bar.to ?? now) <= base) continue;
    const last = found.at(-1);
    const tiny = bar.to !== null && bar.to - bar.from < least;
    if (tiny && last && bar.from - (last.to ?? now) < least && last.to !== null && last.to - last.from < 8 * least) {
      found[found.length - 1] = { ...last, to: bar.to, many: (last.many ?? 1) + 1, failed: last.failed || bar.failed, left: bar.left ?? bar.why };
    } else found.push(bar);
  }
  return { bars: found.slice(-300), base, span };
}

function line(model, tip) {
  const name = el("span", { class: "line-name" }, model);
  const track = el("div", { class: "line-track" });
  const inner = el("div", { class: "line-inner" });
  track.append(inner);
  const element = el("div", { class: "line" }, name, track);
  tint(element, model);
  mark(name, "title", model);
  return {
    element,
    update({ bars, base, span }) {
      const pointed = !tip.hidden && inner.contains(tip.owner) ? tip.owner : null;
      const focused = inner.contains(document.activeElement) ? document.activeElement : null;
      const known = new Map([...inner.children].map((each) => [each.shows, each]));
      const wanted = bars.map((bar) => known.get(shows(bar, base, span)) ?? drawn(model, bar, base, span));
      const kept = new Set(wanted);
      for (const each of known.values()) if (!kept.has(each)) each.remove();
      wanted.forEach((each, n) => inner.children[n] === each || inner.insertBefore(each, inner.children[n] ?? null));
      const again = (old) => (kept.has(old) ? old : wanted.find((each) => each.from === old.from) ?? inner.lastElementChild);
      if (focused) again(focused).tabIndex = 0;
      if (focused) again(focused).focus({ preventScroll: true });
      else if (pointed) point(again(pointed), tip);
    },
    /** Set on this one element: a property that all bars inherit would cost a new style for each of them. */
    shift(share) {
      style(inner, "transform", share ? `translateX(${(-share * 100).toFixed(4)}%)` : "");
    },
  };
}

/** What a drawn bar depends on: one that would look the same stays. */
function shows(bar, base, span) {
  return [base, span, bar.from, bar.to, bar.kind, bar.failed, bar.many, bar.left].join(" ");
}

function drawn(model, bar, base, span) {
  const from = Math.max(0, (bar.from - base) / span);
  const to = bar.to === null ? 1.1 : (bar.to - base) / span;
  const element = el("button", { type: "button", class: "stay", tabindex: "-1", "aria-label": told(model, bar).join(". ") });
  mark(element, "data-kind", bar.kind);
  mark(element, "data-failed", bar.failed ? "" : null);
  style(element, "left", `${(from * 100).toFixed(3)}%`);
  style(element, "width", `${Math.max(0.1, (to - from) * 100).toFixed(3)}%`);
  element.told = () => told(model, bar);
  element.from = `${bar.from} ${bar.kind}`;
  element.shows = shows(bar, base, span);
  return element;
}

/** What is said about a bar. */
function told(model, bar) {
  const end = bar.to === null ? "now" : moment(bar.to);
  const lasted = duration((bar.to ?? wall()) - bar.from);
  const said = [`${model}, ${WORDS[bar.kind]}`, `${moment(bar.from)} to ${end} (${lasted})`];
  if (bar.many) said.push(`${bar.many} short stays`);
  if (bar.bytes) said.push(bytes(bar.bytes));
  if (bar.why) said.push(`${bar.kind === "draining" ? "leaves" : "came"}: ${bar.why}`);
  if (bar.left && bar.left !== bar.why) said.push(`${bar.failed ? "failed" : "then"}: ${bar.left}`);
  return said;
}

function point(target, tip) {
  if (!target.told) return;
  const box = target.getBoundingClientRect(), frame = target.parentElement.parentElement.getBoundingClientRect();
  const middle = (Math.max(box.left, frame.left) + Math.min(box.right, frame.right)) / 2;
  tip.replaceChildren(...target.told().map((text, n) => el(n ? "p" : "strong", {}, text)));
  tip.hidden = false;
  tip.owner = target;
  const width = tip.offsetWidth, height = tip.offsetHeight;
  style(tip, "left", `${Math.max(8, Math.min(innerWidth - width - 8, middle - width / 2))}px`);
  style(tip, "top", `${box.top - height - 8 > 8 ? box.top - height - 8 : box.bottom + 8}px`);
}

/** A start of the daemon: before it, nothing was in memory. */
function started(at, base, span) {
  const element = el("i", { title: `Watchbill was started, ${moment(at)}` });
  style(element, "left", `${(((at - base) / span) * 100).toFixed(3)}%`);
  return element;
}

function hide(tip) {
  tip.hidden = true;
}

/** One stop for the tab key; arrows go from stay to stay. */
function rove(list) {
  if (list.querySelector('.stay[tabindex="0"]')) return;
  const last = list.querySelector(".line:first-child .stay:last-child");
  if (last) last.tabIndex = 0;
}

function walk(event, list, tip) {
  const here = event.target.closest(".stay");
  if (!here) return;
  const row = here.closest(".line");
  const step = { ArrowLeft: () => here.previousElementSibling, ArrowRight: () => here.nextElementSibling,
    ArrowUp: () => nearest(row.previousElementSibling, here), ArrowDown: () => nearest(row.nextElementSibling, here),
    Escape: () => { hide(tip); return here; } }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = step();
  if (!next || next === here) return;
  here.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function nearest(row, here) {
  if (!row) return null;
  const middle = here.getBoundingClientRect().left;
  const stays = [...row.querySelectorAll(".stay")];
  return stays.sort((a, b) => Math.abs(a.getBoundingClientRect().left - middle) - Math.abs(b.getBoundingClientRect().left - middle))[0] ?? null;
}

function ticks(from, to) {
  const steps = [6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 72e5, 108e5, 216e5];
  const room = Math.max(4, Math.min(9, Math.floor(innerWidth / 170)));
  const step = steps.find((each) => (to - from) / each <= room) ?? 216e5;
  const zone = new Date(from).getTimezoneOffset() * 6e4;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at < to; at += step) {
    const midnight = new Date(at).getHours() === 0 && new Date(at).getMinutes() === 0;
    const tick = el("span", {}, midnight ? day(at) : clock(at, false));
    style(tick, "left", `${(((at - from) / (to - from)) * 100).toFixed(3)}%`);
    found.push(tick);
  }
  return found;
}
