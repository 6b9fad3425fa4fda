// Memory: a stacked bar for each device, with what models hold, what others use, and the line of the reserve.

import { act, toast } from "./api.js";
import { button, el, mark, panel, Rows, say, style } from "./dom.js";
import { ask } from "./dialogs.js";
import { bytes } from "./format.js";
import { live, tint, touches } from "./live.js";

const HELD = new Map([
  ["ready", "in memory"], ["draining", "leaving"], ["stopping", "leaving"], ["loading", "loading"],
  ["planned", "comes next"], ["asleep", "asleep"],
]);

export function memoryView() {
  const { section } = panel("Memory", "memory");
  const list = el("div", { class: "devices" });
  const unused = unusedCards();
  section.append(unused.element, list);
  const rows = new Rows(list, device);
  return {
    section,
    update(changed) {
      if (touches(changed, "facts")) unused.update(live.facts.unused_cards);
      if (!touches(changed, "devices", "models", "maintenance", "loans")) return;
      rows.show([...live.table("devices")].map(([name, row]) => [name, { row, held: holders(name), admin: live.admin }]));
    },
  };
}

/** Cards that no engine at hand computes on, and the one command that mends it. */
function unusedCards() {
  const why = el("p"), command = el("code");
  const copy = button("Copy", copied, { class: "small", "aria-label": "Copy the command", hidden: !navigator.clipboard });
  const element = el("div", { class: "unused", role: "note", hidden: true }, why, el("div", { class: "command" }, command, copy));

  async function copied() {
    try {
      await navigator.clipboard.writeText(command.textContent);
      toast("copied");
    } catch {
      toast("The browser does not allow copying: select the command instead.", "bad");
    }
  }

  return {
    element,
    update(told) {
      element.hidden = !told;
      if (!told) return;
      say(why, `${told.cards} is not used: ${told.why}. Mend it with:`);
      say(command, told.mend);
    },
  };
}

function holders(deviceName) {
  const found = [];
  for (const [name, model] of live.table("models")) {
    const size = state(model) === "asleep" ? model.asleep : model.devices[deviceName];
    if (size && HELD.has(state(model))) found.push({ key: name, name, size, state: state(model) });
  }
  for (const [id, loan] of live.table("loans")) {
    if (loan.device === deviceName && loan.granted) found.push({ key: `loan/${id}`, name: loan.why, size: loan.memory, state: "lent" });
  }
  return found;
}

const state = (model) => model.state;

function device(name) {
  const title = el("h3", {}, name);
  const figures = el("p", { class: "figures" });
  const chips = el("ul", { class: "chips" });
  const trouble = el("p", { class: "trouble", hidden: true });
  const bar = el("div", { class: "stack", role: "img" });
  const reserve = el("div", { class: "reserve" });
  const line = el("div", { class: "reserve-line" });
  const note = el("p", { class: "reserve-note" });
  const track = el("div", { class: "track" }, bar, reserve, line);
  const lend = button("Maintenance", () => maintenance(name), { class: "quiet small" });
  const element = el(
    "article", { class: "device" },
    el("div", { class: "device-head" }, title, chips, figures, lend), track, note, trouble,
  );
  const segments = new Rows(bar, segment);
  const chipRows = new Rows(chips, chip);
  return {
    element,
    update({ row, held, admin }) {
      const total = Math.max(row.capacity, 1);
      const booked = held.reduce((sum, each) => sum + (each.state === "planned" ? 0 : each.size), 0);
      const others = row.available === null ? 0 : Math.max(0, row.capacity - row.available - booked);
      const parts = held.map((each) => [each.key, { ...each, share: each.size / total }]);
      if (others / total > 0.004) parts.push(["/others", { name: "other programs", size: others, state: "others", share: others / total }]);
      segments.show(parts);
      const free = Math.max(0, Math.min(row.budget - booked, (row.available ?? row.budget) - row.reserve));
      say(figures, `${bytes(booked)} of ${bytes(row.capacity)} · ${bytes(free)} free for models`);
      const share = Math.min(1, row.reserve / total);
      for (const each of [reserve, line]) style(each, "--share", `${(share * 100).toFixed(3)}%`);
      say(note, row.reserve ? `reserve ${bytes(row.reserve)}` : "no reserve");
      mark(bar, "aria-label", described(name, row, held, others));
      chipRows.show(facts(row).map(([key, text, kind]) => [key, `${kind ?? ""}|${text}`]));
      const said = row.emergency ? "Memory ran short: models leave until the reserve is free again." : row.constrained;
      say(trouble, said ?? "");
      mark(trouble, "hidden", !said);
      mark(element, "data-maintenance", row.maintenance);
      const claim = live.table("maintenance").get(name);
      say(lend, row.maintenance ? "End maintenance" : "Maintenance");
      mark(lend, "aria-label", row.maintenance ? `End maintenance of ${name}` : `Maintenance of ${name}`);
      mark(lend, "title", claim ? `in maintenance: ${claim.why}` : "lend all memory of this device");
      mark(lend, "disabled", !admin);
    },
  };
}

function segment() {
  const label = el("span", { class: "seg-name" });
  const size = el("span", { class: "seg-size" });
  const element = el("div", { class: "seg" }, label, size);
  return {
    element,
    update(part) {
      say(label, part.name);
      say(size, bytes(part.size));
      mark(element, "data-state", part.state);
      mark(element, "title", `${part.name}: ${bytes(part.size)}, ${HELD.get(part.state) ?? part.state}`);
      style(element, "width", `${(part.share * 100).toFixed(3)}%`);
      if (part.state !== "others" && part.state !== "lent") tint(element, part.name);
    },
  };
}

function chip() {
  const element = el("li");
  return {
    element,
    update(value) {
      const [kind, text] = [value.slice(0, value.indexOf("|")), value.slice(value.indexOf("|") + 1)];
      say(element, text);
      mark(element, "class", kind || null);
    },
  };
}

/** What a card says of itself. */
function facts(row) {
  const card = row.card, found = [];
  if (row.maintenance) found.push(["maintenance", "in maintenance", "warn"]);
  if (row.lent) found.push(["lent", `${bytes(row.lent)} lent`]);
  if (!card) return found;
  const hot = row.constraint?.trouble === "heat", power = row.constraint?.trouble === "power";
  if (card.temperature_c !== null) found.push(["heat", `${Math.round(card.temperature_c)} °C`, hot ? "warn" : ""]);
  if (card.power_w !== null) {
    const most = card.power_limit_w ? ` of ${Math.round(card.power_limit_w)} W` : " W";
    found.push(["power", `${Math.round(card.power_w)}${most}`, power ? "warn" : ""]);
  }
  if (card.utilisation_percent !== null) found.push(["busy", `${card.utilisation_percent} % busy`]);
  if (card.throttled.length) found.push(["throttled", `throttled: ${card.throttled.join(", ")}`, "warn"]);
  return found;
}

function described(name, row, held, others) {
  const parts = held.map((each) => `${each.name} ${bytes(each.size)} ${HELD.get(each.state) ?? each.state}`);
  if (others) parts.push(`other programs ${bytes(others)}`);
  return `${name}, ${bytes(row.capacity)}: ${parts.join(", ") || "empty"}; reserve ${bytes(row.reserve)}`;
}

async function maintenance(name) {
  if (live.table("devices").get(name)?.maintenance) {
    await act("Maintenance", "DELETE", `wb/v1/maintenance?device=${encodeURIComponent(name)}`);
    return;
  }
  const said = await ask({
    title: `Maintenance of ${name}`,
    text: "Every model leaves this device when its running answers have ended. Requests wait. Permanent models return afterwards.",
    fields: [
      { name: "for", label: "What for", value: "maintenance" },
      { name: "hours", label: "For how many hours", value: "1", type: "number" },
    ],
    action: "Empty it",
  });
  if (said) await act("Maintenance", "POST", "wb/v1/maintenance", { device: name, for: said.for || "maintenance", hours: Number(said.hours) || 1 });
}

