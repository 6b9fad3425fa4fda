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
  const only = element.firstChild;
  if (only?.nodeType === Node.TEXT_NODE && only === element.lastChild) {
    if (only.data !== value) only.data = value;
  } else if (element.textContent !== value) element.textContent = value;
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
    this.entries = [];
  }

  /** entries: [key, value] in order. */
  show(entries) {
    this.entries = entries;
    const wanted = new Set(entries.map(([key]) => key));
    for (const [key, row] of this.rows) {
      if (!wanted.has(key)) {
        keepFocus(row.element);
        row.element.remove();
        this.rows.delete(key);
      }
    }
    let before = this.parent.firstElementChild;
    entries.forEach(([key, value], n) => {
      let row = this.rows.get(key);
      if (!row) {
        row = Object.assign(this.make(key), { key });
        this.rows.set(key, row);
      }
      if (row.element === before) before = before.nextElementSibling;
      else this.parent.insertBefore(row.element, before);
      if (row.value !== value && (row.value === undefined || this.isSeen(n))) {
        row.value = value;
        row.update(value, key);
      }
    });
  }

  /** Times that pass. */
  tick() {
    this.entries.forEach(([key], n) => this.isSeen(n) && this.rows.get(key).tick());
  }

  isSeen() {
    return true;
  }
}

/** A list of so many rows is short. */
const FEW = 12;
/** Rows so near to the screen, in its heights, count as seen. */
const NEAR = 0.3;
/** Rows that cannot be seen are changed so often, for searches in the page and for screen readers. */
const UNSEEN_EVERY_MS = 5000;
const longLists = new Set();

/** Rows of a list that may be long. Those that cannot be seen change only now and then: each change costs a layout. */
export class LongRows extends Rows {
  constructor(parent, make) {
    super(parent, make);
    this.first = 0;
    this.last = Infinity;
    this.wholeAt = -Infinity;
    longLists.add(this);
  }

  isSeen(n) {
    return n >= this.first && n <= this.last;
  }

  tick() {
    if (this.last === Infinity) this.show(this.entries);
    super.tick();
  }

  look() {
    const count = this.parent.childElementCount, now = performance.now();
    [this.first, this.last] = [0, Infinity];
    if (count <= FEW || now - this.wholeAt > UNSEEN_EVERY_MS) {
      this.wholeAt = now;
      return;
    }
    const { top, height } = this.parent.getBoundingClientRect();
    if (!height) return;
    const near = NEAR * innerHeight, each = height / count;
    this.first = (-near - top) / each - 1;
    this.last = (innerHeight + near - top) / each;
  }
}

/** Rows of a line that moves on: the element at a place is written anew for the request that is there now, which costs far less than
    rows that come and go. A list that the mouse or the keyboard is in keeps each row for what it shows, so that no click hits another. */
export class QueueRows extends LongRows {
  show(entries) {
    if (this.parent.matches(":hover, :focus-within")) this.keep(entries);
    else this.rewrite(entries);
  }

  /** Rows by their key, as they are read: places out of sight may show what is gone, or the same twice. */
  keep(entries) {
    const shown = new Map();
    for (const row of this.inOrder()) {
      if (shown.has(row.key)) row.element.remove();
      else shown.set(row.key, row);
    }
    this.rows = shown;
    super.show(entries);
    this.rows = new Map(entries.map(([key]) => [key, this.rows.get(key)]));
  }

  rewrite(entries) {
    this.entries = entries;
    const old = this.inOrder();
    for (const row of old.splice(entries.length)) row.element.remove();
    this.rows = new Map(entries.map(([key, value], n) => {
      const row = old[n] ?? this.make(key);
      if (!old[n]) this.parent.append(row.element);
      if ((row.key !== key || row.value !== value) && (!old[n] || this.isSeen(n))) {
        [row.key, row.value] = [key, value];
        row.update(value, key);
      }
      return [key, row];
    }));
  }

  inOrder() {
    return [...this.rows.values()];
  }
}

/** Finds out what can be seen. To be called before anything is changed: later it would cost a layout. */
export function look() {
  for (const each of longLists) each.look();
}

/** After the screen was moved, rows that were left out are shown as they are. */
export function catchUp() {
  look();
  for (const each of longLists) each.show(each.entries);
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
