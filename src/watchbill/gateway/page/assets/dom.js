// Elements from plain values. Whatever comes from outside becomes text, never markup.

/** el("p", {class: "x", onclick: f, title: "y"}, "text", child): an element. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  assign(element, properties);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** The same for drawings. */
export function svg(tag, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

function assign(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Changes a text only where it differs: most of them do not, twice a second. */
export function say(element, text) {
  const value = text === null || text === undefined ? "" : String(text);
  if (element.textContent !== value) element.textContent = value;
}

export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

export function style(element, name, value) {
  if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
}

/** Rows by key: made once, changed in place, moved only where the order changed. */
export class Rows {
  constructor(parent, make) {
    this.parent = parent;
    this.make = make;
    this.rows = new Map();
  }

  /** entries: [key, value] in order. */
  show(entries) {
    const wanted = new Set(entries.map(([key]) => key));
    for (const [key, row] of this.rows) {
      if (!wanted.has(key)) {
        keepFocus(row.element);
        row.element.remove();
        this.rows.delete(key);
      }
    }
    let before = this.parent.firstElementChild;
    for (const [key, value] of entries) {
      let row = this.rows.get(key);
      if (!row) {
        row = this.make(key);
        this.rows.set(key, row);
      }
      if (row.element === before) before = before.nextElementSibling;
      else this.parent.insertBefore(row.element, before);
      if (row.value !== value) {
        row.value = value;
        row.update(value);
      }
    }
  }
}

/** A row that is removed hands the focus on to its neighbour: the keyboard does not start anew. */
function keepFocus(element) {
  if (!element.contains(document.activeElement)) return;
  const near = element.nextElementSibling ?? element.previousElementSibling;
  const next = near?.querySelector("button, a, input") ?? document.getElementById("main");
  next?.focus({ preventScroll: true });
}

export function button(text, onclick, properties = {}) {
  return el("button", { type: "button", ...properties, onclick }, text);
}

export function panel(title, id, ...children) {
  const heading = el("h2", { id: `${id}-title` }, title);
  const head = el("div", { class: "panel-head" }, heading);
  const section = el("section", { class: "panel", id, "aria-labelledby": `${id}-title` }, head, ...children);
  return { section, head, heading };
}

export function empty(text) {
  return el("p", { class: "blank" }, text);
}
