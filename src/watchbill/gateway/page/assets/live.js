// The stream of changes, and the tables it fills. One stream per page; it comes back by itself.

import { headers, key, words } from "./api.js";
import { style } from "./dom.js";

const SILENCE_MS = 40_000;
const PAUSE_MS_MAX = 10_000;

export class Live extends EventTarget {
  constructor() {
    super();
    this.tables = new Map();
    this.admin = false;
    this.state = "connecting";
    this.offset = 0; // the browser's clock minus the daemon's own
    this.wallOffset = 0; // wall time minus the daemon's own clock
    this.changed = new Set();
    this.frame = 0;
    this.attempt = 0;
    this.control = null;
    document.addEventListener("visibilitychange", () => this.schedule());
  }

  table(name) {
    return this.tables.get(name) ?? new Map();
  }

  get facts() {
    return this.table("facts").get("daemon") ?? {};
  }

  /** The present, by the daemon's clock. */
  now() {
    return performance.now() + this.offset;
  }

  start() {
    this.control?.abort();
    this.attempt = 0;
    this.follow();
  }

  async follow() {
    const control = new AbortController();
    this.control = control;
    while (!control.signal.aborted) {
      const refused = await this.read(control);
      if (control.signal.aborted) return;
      if (refused) {
        this.tell("locked", refused);
        return;
      }
      this.tell("lost");
      const pause = Math.min(PAUSE_MS_MAX, 500 * 2 ** this.attempt++);
      await new Promise((done) => setTimeout(done, pause * (0.75 + Math.random() / 2)));
    }
  }

  /** Reads one stream to its end. Answers why a key is needed, if one is. */
  async read(control) {
    let watchdog = 0;
    const once = new AbortController();
    const stop = () => once.abort();
    control.signal.addEventListener("abort", stop);
    const calm = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(stop, SILENCE_MS);
    };
    try {
      calm();
      const answer = await fetch("wb/v1/live", { headers: headers(), signal: once.signal, cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) return key() ? await words(answer) : "This Watchbill asks for a key.";
      if (!answer.ok) return null;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return null;
        calm();
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const event of events) this.hear(event);
      }
    } catch {
      return null;
    } finally {
      clearTimeout(watchdog);
      control.signal.removeEventListener("abort", stop);
      once.abort();
    }
  }

  hear(event) {
    for (const line of event.split("\n")) {
      if (line.startsWith("data: ")) this.take(JSON.parse(line.slice(6)));
    }
  }

  take(message) {
    this.attempt = 0;
    this.offset = message.now - performance.now();
    if (message.whole) {
      this.tables.clear();
      this.admin = message.admin;
      this.wallOffset = message.wall - message.now;
      this.changed.add("whole");
      this.dispatchEvent(new Event("begun"));
    }
    for (const [section, rows] of Object.entries(message.set)) this.set(section, rows);
    for (const [section, names] of Object.entries(message.gone ?? {})) this.drop(section, names);
    if (message.journal) this.dispatchEvent(new CustomEvent("journal", { detail: message }));
    this.tell("live");
    this.schedule();
  }

  set(section, rows) {
    if (!this.tables.has(section)) this.tables.set(section, new Map());
    const table = this.tables.get(section);
    for (const [name, row] of Object.entries(rows)) {
      table.set(name, row);
      if (section === "models") hueOf(name);
    }
    this.changed.add(section);
  }

  drop(section, names) {
    for (const name of names) this.tables.get(section)?.delete(name);
    this.changed.add(section);
  }

  /** One drawing for all changes since the last frame; none while the page cannot be seen. */
  schedule() {
    if (this.frame || !this.changed.size || document.hidden) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const changed = this.changed;
      this.changed = new Set();
      this.dispatchEvent(new CustomEvent("change", { detail: changed }));
    });
  }

  tell(state, why = "") {
    if (this.state === state && !why) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, why } }));
  }
}

export const live = new Live();

/** Whether any of these sections changed. */
export function touches(changed, ...sections) {
  return changed.has("whole") || sections.some((section) => changed.has(section));
}

// ------------------------------------------------------------------ colours

const hues = new Map();

/** The colour of a model: neighbours in the config differ the most. */
function hueOf(model) {
  if (!hues.has(model)) hues.set(model, String(Math.round((222 + hues.size * 137.508) % 360)));
  return hues.get(model);
}

/** Gives an element the colour of a model, the same everywhere on the page. */
export function tint(element, model) {
  element.classList.add("hued");
  style(element, "--hue", hueOf(model));
}
