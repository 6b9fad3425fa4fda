// Plans: the batches of the fleet's folder, each as the graph of its tasks, with live progress.

import { call } from "./api.js";
import { el, empty, mark, panel, Rows, say, style, svg } from "./dom.js";
import { duration, moment, number, plural } from "./format.js";

const LOOK_MS = 2000;
const ORDER = ["complete", "running", "queued", "ready", "waiting", "manual", "skipped", "cancelled", "failed"];
const BOX = { width: 190, height: 46, across: 44, down: 14 };

export function plansView() {
  const { section } = panel("Plans", "plans");
  const fleet = el("p", { class: "why" });
  const agents = el("ul", { class: "chips" });
  const list = el("div", { class: "batches" });
  const none = empty("No batch yet. watchbill plan submit PLAN makes one.");
  section.append(fleet, agents, list, none);
  const rows = new Rows(list, batch);
  let timer = 0, isShown = false;

  async function look() {
    clearTimeout(timer);
    if (!isShown) return;
    if (!document.hidden) {
      try {
        show(await call("GET", "wb/v1/plans"));
      } catch (error) {
        say(fleet, error.message);
      }
    }
    timer = setTimeout(look, LOOK_MS);
  }

  function show(told) {
    const brain = told.coordinator;
    say(fleet, brain.is_dead ? "No coordinator runs." : `Coordinator on ${brain.host}, pid ${brain.pid}`);
    const living = Object.entries(told.agents).filter(([, agent]) => !agent.is_dead);
    agents.replaceChildren(...living.map(([name, agent]) => el("li", { class: agent.hold ? "warn" : null }, `${name}: ${agent.hold ? "held" : agent.state || "up"}, ${agent.running} running`)));
    rows.show(told.batches.map((each) => [each.batch, each]));
    mark(none, "hidden", told.batches.length > 0);
  }

  return {
    section,
    update() {},
    enter() { isShown = true; look(); },
    leave() { isShown = false; clearTimeout(timer); },
  };
}

function batch(id) {
  const name = el("h3"), state = el("span", { class: "state" }), facts = el("p", { class: "why" });
  const bar = el("div", { class: "progress", role: "img" }), trouble = el("p", { class: "trouble", hidden: true });
  const graph = el("div", { class: "graph", tabindex: "0", role: "group", "aria-label": "Tasks" });
  const element = el("article", { class: "batch" }, el("div", { class: "title" }, name, state), facts, bar, trouble, graph);
  const parts = new Rows(bar, (stage) => {
    const part = el("i", { "data-stage": stage });
    return { element: part, update(share) { style(part, "width", `${(share * 100).toFixed(2)}%`); } };
  });
  return {
    element,
    update(row) {
      say(name, row.plan);
      say(state, row.state.replaceAll("_", " "));
      mark(element, "data-state", row.state);
      mark(graph, "aria-label", `Tasks of ${row.plan}, batch ${id}`);
      say(trouble, row.why ?? "");
      mark(trouble, "hidden", !row.why);
      if (!row.counts) return;
      say(facts, told(id, row));
      const stages = ORDER.filter((stage) => row.counts[stage]);
      parts.show(stages.map((stage) => [stage, row.counts[stage] / Math.max(1, row.total)]));
      mark(bar, "aria-label", stages.map((stage) => `${row.counts[stage]} ${stage}`).join(", ") || "no tasks");
      graph.replaceChildren(...(row.graph.length ? [drawn(row.graph)] : []));
    },
  };
}

function told(id, row) {
  const said = [id, `${number(row.done)} of ${plural(row.total, "task")}`];
  if (row.started) said.push(`since ${moment(row.started)}`);
  if (row.finished && row.started) said.push(`took ${duration(row.finished - row.started)}`);
  if (row.rate_per_min && !row.finished) said.push(`${number(row.rate_per_min)} tasks a minute`);
  if (row.left_ms && !row.finished) said.push(`about ${duration(row.left_ms)} left`);
  return said.join(" · ");
}

/** Boxes in columns: a task stands behind everything that it waits for. */
function drawn(graph) {
  const depth = depths(graph), columns = [];
  for (const node of graph) (columns[depth.get(node.task)] ??= []).push(node);
  const at = new Map();
  columns.forEach((nodes, x) => nodes.forEach((node, y) => at.set(node.task, [x * (BOX.width + BOX.across), y * (BOX.height + BOX.down)])));
  const width = columns.length * (BOX.width + BOX.across) - BOX.across;
  const height = Math.max(...columns.map((nodes) => nodes.length)) * (BOX.height + BOX.down) - BOX.down;
  const picture = svg("svg", { width: width + 4, height: height + 4, viewBox: `-2 -2 ${width + 4} ${height + 4}`, role: "presentation" });
  for (const node of graph) for (const before of node.after) if (at.has(before)) picture.append(arrow(at.get(before), at.get(node.task)));
  for (const node of graph) picture.append(box(node, at.get(node.task)));
  return picture;
}

function depths(graph) {
  const found = new Map(), known = new Map(graph.map((node) => [node.task, node]));
  const of = (node, path) => {
    if (found.has(node.task)) return found.get(node.task);
    if (path.has(node.task)) return 0;
    path.add(node.task);
    const before = node.after.map((name) => known.get(name)).filter(Boolean).map((each) => of(each, path) + 1);
    path.delete(node.task);
    found.set(node.task, Math.max(0, ...before));
    return found.get(node.task);
  };
  for (const node of graph) of(node, new Set());
  return found;
}

function arrow([x1, y1], [x2, y2]) {
  const from = [x1 + BOX.width, y1 + BOX.height / 2], to = [x2, y2 + BOX.height / 2], bend = BOX.across * 0.6;
  return svg("path", { class: "edge", d: `M${from[0]},${from[1]}C${from[0] + bend},${from[1]} ${to[0] - bend},${to[1]} ${to[0]},${to[1]}` });
}

function box(node, [x, y]) {
  const total = Object.values(node.counts).reduce((sum, count) => sum + count, 0);
  const stage = ["failed", "manual", "running", "queued", "ready", "waiting", "skipped", "cancelled", "complete"].find((each) => node.counts[each]);
  const done = (node.counts.complete ?? 0) / Math.max(1, total);
  const text = svg("text", { x: 12, y: 18 }), sums = svg("text", { x: 12, y: 34, class: "sums" });
  text.textContent = node.task.length > 24 ? `${node.task.slice(0, 23)}…` : node.task;
  sums.textContent = total === 1 ? stage : `${node.counts.complete ?? 0} of ${total}${stage === "complete" ? "" : `, ${stage}`}`;
  const title = svg("title");
  title.textContent = [node.task, ...Object.entries(node.counts).map(([name, count]) => `${count} ${name}`), node.error ?? ""].filter(Boolean).join("\n");
  return svg(
    "g", { class: "node", "data-stage": stage, transform: `translate(${x},${y})` }, title,
    svg("rect", { width: BOX.width, height: BOX.height, rx: 9 }),
    svg("rect", { class: "done", x: 10, width: ((BOX.width - 20) * done).toFixed(1), height: 2.5, y: BOX.height - 5, rx: 1.2 }), text, sums,
  );
}
