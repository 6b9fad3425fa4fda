// The page: which views there are, which one is shown, and what the keyboard does.

import { key } from "./api.js";
import { chatView } from "./chat.js";
import { askKey, showHelp } from "./dialogs.js";
import { catchUp, el, look, mark, say } from "./dom.js";
import { daemonView, leasesView, spoolsView, tiersView } from "./elsewhere.js";
import { alertsView, journalView } from "./journal.js";
import { live } from "./live.js";
import { memoryView } from "./memory.js";
import { modelsView } from "./models.js";
import { plansView } from "./plans.js";
import { lanesView, requestsView, summaryView } from "./requests.js";
import { timelineView } from "./timeline.js";
import { whatIfView } from "./whatif.js";

const STATES = { live: "live", lost: "the daemon is away", connecting: "connecting", locked: "locked" };
const journal = journalView();
/** Every view: its parts, and whether the config has anything to show in it. */
const VIEWS = [
  { id: "now", title: "Now", parts: [summaryView(), alertsView(), memoryView(), timelineView(), modelsView(), requestsView(), lanesView(), daemonView()], is: () => true },
  { id: "chat", title: "Try", parts: [chatView()], is: () => true },
  { id: "whatif", title: "What if", parts: [whatIfView()], is: () => true },
  { id: "journal", title: "Journal", parts: [journal], is: () => true },
  { id: "spools", title: "Spools", parts: [spoolsView()], is: () => live.table("spools").size > 0 },
  { id: "plans", title: "Plans", parts: [plansView()], is: () => live.facts.plans === true },
  { id: "elsewhere", title: "Elsewhere", parts: [tiersView(), leasesView()], is: () => live.table("tiers").size + live.table("leases").size > 0 },
];
const main = document.getElementById("main");
const tabs = document.getElementById("tabs");
const keyButton = document.getElementById("key");
const TICK_MS = 1000;
/** A picture of the daemon comes about every 500 ms: one that is expected so soon is waited for. */
const SOON_MS = 300;
let current = null;
let ticked = 0;
let ticking = 0;
let moving = 0;

function build() {
  for (const view of VIEWS) {
    view.element = el("div", { class: `view view-${view.id}`, hidden: true }, view.parts.map((each) => each.section));
    view.tab = el("a", { href: `#${view.id}` }, view.title);
    main.append(view.element);
    tabs.append(view.tab);
  }
}

function choose() {
  const asked = VIEWS.find((view) => `#${view.id}` === location.hash);
  const next = asked ?? VIEWS[0];
  if (next === current) return;
  current?.parts.forEach((each) => each.leave?.());
  current = next;
  for (const view of VIEWS) {
    view.element.hidden = view !== next;
    mark(view.tab, "aria-current", view === next ? "page" : null);
  }
  document.title = next === VIEWS[0] ? "Watchbill" : `${next.title} · Watchbill`;
  next.parts.forEach((each) => each.enter?.());
  draw(new Set(["whole"]));
  tick();
}

function draw(changed) {
  look();
  if (changed.has("whole") || changed.has("spools") || changed.has("tiers") || changed.has("leases") || changed.has("facts")) {
    for (const view of VIEWS) view.tab.hidden = !view.is();
  }
  current.parts.forEach((each) => each.update(changed));
  if (performance.now() - ticked > TICK_MS - SOON_MS) pass(TICK_MS + SOON_MS);
}

/** Times that pass, once a second. Where much happens they are shown with what changed: every frame costs a layout. */
function tick() {
  look();
  pass(TICK_MS);
}

function pass(next) {
  clearTimeout(ticking);
  ticking = setTimeout(tick, next);
  if (document.hidden || live.state !== "live") return;
  ticked = performance.now();
  current.parts.forEach((each) => each.tick?.());
}

function settle() {
  moving = 0;
  catchUp();
}

function shown(index) {
  return VIEWS.filter((view) => view.is())[index];
}

function pulse({ state, why }) {
  const element = document.getElementById("pulse");
  mark(element, "data-state", state);
  say(element.lastElementChild, state === "live" && !live.admin ? "live, read-only" : STATES[state]);
  mark(document.body, "data-stale", state === "live" || state === "connecting" ? null : "");
  keyButton.hidden = !(state === "locked" || key() || !live.admin);
  if (state === "locked") unlock(why);
}

async function unlock(why) {
  if (document.querySelector("dialog")) return;
  const said = await askKey(why);
  if (said === "kept" || said === "forgotten") live.start();
}

function typed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
  if (event.target.closest("input, textarea, select")) return;
  const view = /^[1-9]$/.test(event.key) ? shown(Number(event.key) - 1) : null;
  if (view) location.hash = view.id;
  else if (event.key === "/") {
    event.preventDefault();
    location.hash = "journal";
    setTimeout(() => journal.focus());
  } else if (event.key === "t") theme();
  else if (event.key === "k") unlock("");
  else if (event.key === "?") showHelp(VIEWS.filter((each) => each.is()));
}

function theme() {
  named(window.nextTheme());
}

function named(value) {
  const element = document.getElementById("theme");
  const word = { auto: "Auto", dark: "Dark", light: "Light" }[value];
  say(element, word);
  mark(element, "aria-label", `Theme: ${word}`);
}

build();
named(document.documentElement.dataset.theme);
document.getElementById("theme").addEventListener("click", theme);
document.getElementById("help").addEventListener("click", () => showHelp(VIEWS.filter((each) => each.is())));
keyButton.addEventListener("click", () => unlock(""));
addEventListener("hashchange", choose);
addEventListener("keydown", typed);
for (const moved of ["scroll", "resize"]) addEventListener(moved, () => moving ||= requestAnimationFrame(settle), { passive: true });
live.addEventListener("change", ({ detail }) => draw(detail));
live.addEventListener("begun", () => {
  mark(document.body, "data-unseen", null);
  pulse({ state: "live", why: "" });
});
live.addEventListener("state", ({ detail }) => pulse(detail));
choose();
live.start();
