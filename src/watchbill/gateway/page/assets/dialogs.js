// Dialogs: explanations, logs, questions. The browser's own dialog keeps the focus inside and gives it back.

import { call, keepKey, key, part } from "./api.js";
import { button, el, empty } from "./dom.js";
import { bytes, duration, number } from "./format.js";
import { live } from "./live.js";

let numbers = 0;

/** Opens a dialog; resolves when it is closed. `fill` gets its body and a function that closes it. */
function open(title, fill, kind = "") {
  const id = `dialog-${++numbers}`;
  const body = el("div", { class: "dialog-body" });
  const close = button("Close", () => dialog.close(), { class: "quiet" });
  const dialog = el(
    "dialog", { class: kind, "aria-labelledby": id },
    el("div", { class: "dialog-head" }, el("h2", { id }, title), close), body,
  );
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      done(dialog.returnValue);
      dialog.remove();
    });
    Promise.resolve(fill(body, dialog)).catch((error) => body.replaceChildren(empty(error.message)));
  });
}

function figures(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", {}, known.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

export async function ask({ title, text, fields, action }) {
  let said = null;
  await open(title, (body, dialog) => {
    const inputs = fields.map((field) => {
      const input = el("input", { name: field.name, type: field.type ?? "text", value: field.value ?? "", autocomplete: "off" });
      return { input, label: el("label", {}, field.label, input) };
    });
    const form = el("form", { method: "dialog" }, inputs.map(({ label }) => label), el("button", { class: "main", type: "submit" }, action));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      said = Object.fromEntries(inputs.map(({ input }) => [input.name, input.value.trim()]));
      dialog.close();
    });
    body.append(...(text ? [el("p", {}, text)] : []), form);
    inputs[0]?.input.focus();
  });
  return said;
}

export function askKey(why) {
  return open("Key", (body, dialog) => {
    const input = el("input", { type: "password", name: "key", autocomplete: "off", value: key(), required: true });
    const form = el("form", { method: "dialog" }, el("label", {}, "API key", input), el("button", { class: "main", type: "submit" }, "Use it"));
    const forget = button("Forget it", () => { keepKey(""); dialog.close("forgotten"); }, { class: "quiet" });
    form.append(forget);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      keepKey(input.value.trim());
      dialog.close("kept");
    });
    body.append(
      el("p", {}, why || "A key with admin rights can load, unload and cancel; any other can watch and chat."), form,
      el("p", { class: "why" }, "The key stays in this tab until it is closed."),
    );
    input.focus();
  }, "narrow");
}

export async function explainModel(name, note = null) {
  await open(`Why: ${name}`, async (body) => {
    body.append(empty("Asking the scheduler"));
    const told = await call("GET", `wb/v1/explain?model=${encodeURIComponent(name)}`);
    body.replaceChildren(...(note ? [note] : []), ...explanation(told));
  });
}

function explanation(told) {
  const leaving = told.leaving.length ? `${told.leaving.join(", ")} would leave` : "";
  const terms = told.terms;
  return [
    el("p", { class: "verdict" }, `If it were asked for now: ${told.verdict}`),
    el("p", {}, told.reason),
    figures([
      ["State", told.state], ["Not in memory because", told.absent_because], ["Makes room", leaving],
      ["Expected start", told.expected_ms === null ? null : `in ${duration(told.expected_ms)}`],
      ["Served by", told.served_by === told.model ? null : told.served_by],
      ["Load takes", `${duration(told.load_ms)}${told.load_is_guess ? ", a guess" : ""}`],
      ["An answer takes", duration(told.service_ms)], ["Memory", bytes(told.memory)], ["Waiting for it", number(told.queued)],
      ["Pressure", `${number(told.pressure_per_s)} per s`], ["Own momentum", `${number(told.own_momentum_per_s)} per s`],
      ["Inertia", number(told.inertia)], ["Turn lasts at least", duration(terms.quantum_ms)],
      ["Stays when idle", duration(terms.linger_ms)], ["Policy", told.policy],
    ]),
    ...momentum(told),
  ];
}

function momentum(told) {
  const rows = Object.entries(told.momentum_per_s);
  if (!rows.length) return [];
  return [el("h3", {}, "What holds the others in memory"), figures(rows.map(([name, value]) => [name, `${number(value)} per s`]))];
}

export async function explainRequest(id) {
  const row = live.table("requests").get(id);
  const model = row?.asked ?? row?.model;
  await open(row?.state === "running" ? "Request" : "Why does it wait", async (body) => {
    body.append(empty("Asking the scheduler"));
    const told = await call("GET", `wb/v1/requests/${encodeURIComponent(id)}`);
    const parts = [
      el("p", { class: "verdict" }, told.reason),
      figures([
        ["Request", told.id], ["Model", told.model], ["Asked for", told.asked === told.model ? null : told.asked],
        ["With", told.companions.join(", ")], ["Lane", `${told.lane} (${told.class})`], ["Priority", number(told.priority)],
        ["Before it", told.position === null ? null : number(told.position)], ["Has waited", duration(told.waited_ms)],
        ["Forecast at arrival", told.forecast_ms === null ? null : duration(told.forecast_ms)],
        ["Forecast now", told.starts_in_ms === null ? null : duration(told.starts_in_ms)],
        ["Given up in", told.due_ms === null ? null : duration(told.due_ms)],
        ["Runs for", told.ran_ms === null ? null : duration(told.ran_ms)],
      ]),
    ];
    if (told.state === "waiting" && model) {
      const why = await call("GET", `wb/v1/explain?model=${encodeURIComponent(model)}`);
      parts.push(el("h3", {}, `A further request for ${model}`), ...explanation(why));
    }
    body.replaceChildren(...parts);
  });
}

export async function showLog(name) {
  await open(`Log of ${name}`, async (body, dialog) => {
    const text = el("pre", { class: "log", tabindex: "0", "aria-label": `The last lines of the log of ${name}` });
    body.append(text);
    while (dialog.open) {
      const told = await call("GET", `wb/v1/models/${part(name)}/log?lines=300`);
      const lines = told.lines.join("\n") || "No engine of this model has written a line yet.";
      if (text.textContent !== lines) {
        const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
        text.textContent = lines;
        if (atEnd || !text.scrollTop) text.scrollTop = text.scrollHeight;
      }
      await new Promise((done) => setTimeout(done, 1000));
    }
  }, "wide");
}

export function showHelp(views) {
  const keys = [
    ...views.map((view, n) => [String(n + 1), view.title]), ["/", "Search the journal"], ["t", "Dark, light, as the system says"],
    ["k", "Type in a key"], ["← → ↑ ↓", "In the timeline: to the next or last stay in memory"], ["Esc", "Close a dialog"], ["?", "This list"],
  ];
  return open("Keyboard", (body) => body.append(el("dl", { class: "keys" }, keys.map(([name, what]) => [el("dt", {}, el("kbd", {}, name)), el("dd", {}, what)]))), "narrow");
}
