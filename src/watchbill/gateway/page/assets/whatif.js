// What if: the traffic of the last day, simulated with more or less memory or another policy.

import { call, toast } from "./api.js";
import { button, el, empty, mark, panel, say } from "./dom.js";
import { bytes, duration, moment, number, plural } from "./format.js";
import { live, touches } from "./live.js";

const POLICIES = [["", "as configured"], ["rate", "rate"], ["turns", "turns"], ["fifo", "fifo"], ["exhaustive", "exhaustive"]];
const FIGURES = [
  ["wait_p50_ms", "wait, p50", duration, -1], ["wait_p95_ms", "wait, p95", duration, -1],
  ["answered", "answered", number, 1], ["refused", "refused", number, -1],
];

export function whatIfView() {
  const { section } = panel("What would more memory buy?", "whatif");
  const device = el("select", { "aria-label": "Device" });
  const more = el("input", { type: "number", value: "8", step: "1", min: "-1024", max: "1024", "aria-label": "GB more, or fewer" });
  const policy = el("select", { "aria-label": "Policy" }, POLICIES.map(([value, name]) => el("option", { value }, name)));
  const start = el("button", { class: "main", type: "submit" }, "Simulate the last day");
  const stop = button("Cancel", cancel, { class: "quiet", hidden: true });
  const state = el("p", { class: "why", role: "status" });
  const form = el(
    "form", { class: "whatif-form" },
    el("label", {}, "Device", device), el("label", {}, "GB more, or fewer", more), el("label", {}, "Policy", policy),
    el("div", { class: "hand" }, start, stop),
  );
  const result = el("div", { class: "whatif-result" });
  section.append(
    el("p", { class: "why" }, "The recorded requests of the last day run through the scheduler again, in a simulated machine. Nothing is loaded, and no request waits for it."),
    form, state, result,
  );
  let isRunning = false, began = 0, picture = "";

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!isRunning) ask();
  });

  async function ask() {
    const amount = Number(more.value) || 0;
    const asked = { memory: amount ? { [device.value]: `${amount > 0 ? "+" : "-"}${Math.abs(amount)}GB` } : {} };
    if (policy.value) asked.policy = policy.value;
    run(true);
    try {
      show(await call("POST", "wb/v1/simulate", asked));
      say(state, "");
    } catch (error) {
      say(state, error.message);
      mark(state, "class", error.status === 404 ? "blank" : "trouble");
    }
    run(false);
  }

  async function cancel() {
    try {
      await call("DELETE", "wb/v1/simulate");
    } catch (error) {
      toast(`Cancel: ${error.message}`, "bad");
    }
  }

  function run(yes) {
    isRunning = yes;
    began = performance.now();
    stop.hidden = !yes;
    allow();
    if (yes) {
      mark(state, "class", "why");
      say(state, "simulating");
    }
  }

  function allow() {
    mark(start, "disabled", isRunning || !live.admin);
    mark(start, "title", live.admin ? null : "needs an admin key: a simulation takes a core for some seconds");
  }

  function show(told) {
    const left = told.left_out ? ` ${plural(told.left_out, "request")} could not be simulated or came before the newest ${number(told.requests)}.` : "";
    const from = `${plural(told.requests, "request")} from ${moment(told.since_ms)} to ${moment(told.until_ms)}.${left}`;
    URL.revokeObjectURL(picture);
    picture = URL.createObjectURL(new Blob([told.svg], { type: "image/svg+xml" }));
    const drawn = el("img", { src: picture, alt: `Timelines of the simulated machines: ${told.runs.slice(1).map((each) => each.name).join("; ")}` });
    result.replaceChildren(
      el("p", {}, from), comparison(told.runs),
      el("p", { class: "why" }, "“Recorded” is what was. Compare the other two columns with each other: both are simulated, and how near “as it is” comes to “recorded” says how far to trust them. Requests come at their recorded times, so callers who would have asked again sooner or later do not."),
      el("div", { class: "whatif-picture", tabindex: "0", role: "group", "aria-label": "Timelines" }, drawn),
    );
  }

  async function recall() {
    try {
      const told = await call("GET", "wb/v1/simulate");
      if (!isRunning && told.last) show(told.last);
      if (!told.kept) say(state, "No traffic is kept for simulations: set traffic = true in [journal] and restart.");
      else if (!told.last && !isRunning) result.replaceChildren(empty("No simulation yet."));
    } catch (error) {
      say(state, error.message);
    }
  }

  return {
    section,
    enter: recall,
    update(changed) {
      allow();
      if (!touches(changed, "devices")) return;
      const devices = [...live.table("devices")], before = device.value;
      if (device.options.length === devices.length && devices.every(([name], at) => device.options[at].value === name)) return;
      device.replaceChildren(...devices.map(([name, row]) => el("option", { value: name }, `${name}, now ${bytes(row.capacity)}`)));
      device.value = devices.some(([name]) => name === before) ? before : devices.at(-1)?.[0] ?? "";
    },
    tick() {
      if (isRunning) say(state, `simulating for ${duration(performance.now() - began)}`);
    },
  };
}

const ORDER = ["interactive", "normal", "background", "leased"];

function classes(runs) {
  const found = [...new Set(runs.flatMap((run) => Object.keys(run.classes)))];
  return found.sort((one, other) => ORDER.indexOf(one) - ORDER.indexOf(other));
}

/** A column for what was and for each simulated machine. */
function comparison(runs) {
  const head = el("tr", {}, el("td"), runs.map((run) => el("th", { scope: "col" }, run.name)));
  const groups = classes(runs).map((name) => el(
    "tbody", {}, el("tr", {}, el("th", { scope: "rowgroup", colspan: runs.length + 1 }, `${name} requests`)),
    FIGURES.map(([key, label, words, better]) => figures(label, runs.map((run) => run.classes[name]?.[key] ?? null), words, better)),
  ));
  const all = el("tbody", {}, el("tr", {}, el("th", { scope: "rowgroup", colspan: runs.length + 1 }, "models")), figures("loads", runs.map((run) => run.loads), number, -1));
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Figures" }, el("table", { class: "figures-table" }, el("thead", {}, head), groups, all));
}

function figures(label, values, words, better) {
  return el("tr", {}, el("th", { scope: "row" }, label), values.map((value, at) => cell(value, words, at === 2 ? verdict(value, values[1], better) : null)));
}

function cell(value, words, kind) {
  const said = kind ? el("small", { class: kind }, kind) : null;
  return el("td", {}, value === null ? "–" : words(value), said ? " " : null, said);
}

/** Whether a figure is better than that of the machine as it is; small differences are none. */
function verdict(value, before, better) {
  if (value === null || before === null || Math.abs(value - before) <= 0.02 * Math.max(Math.abs(before), 1)) return null;
  return (value - before) * better > 0 ? "better" : "worse";
}
