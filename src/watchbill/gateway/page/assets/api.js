// Calls to the daemon, with the key that was typed in. The key stays in this tab: session storage, never an address.

import { el } from "./dom.js";

const KEPT = "watchbill.key";

export function key() {
  try { return sessionStorage.getItem(KEPT) ?? ""; } catch { return ""; }
}

export function keepKey(value) {
  try {
    if (value) sessionStorage.setItem(KEPT, value);
    else sessionStorage.removeItem(KEPT);
  } catch { /* storage is off: the key is asked for again */ }
}

export function headers(extra = {}) {
  const found = { ...extra };
  if (key()) found.Authorization = `Bearer ${key()}`;
  return found;
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Asks the daemon; the answer's object. Throws Refused with the daemon's own words. */
export async function call(method, path, body, options = {}) {
  const asked = { method, headers: headers(), ...options };
  if (body !== undefined) {
    asked.body = JSON.stringify(body);
    asked.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, asked);
  if (!answer.ok) throw new Refused(answer.status, await words(answer));
  return answer.json();
}

export async function words(answer) {
  try {
    const told = await answer.json();
    return told?.error?.message ?? (typeof told?.error === "string" ? told.error : `status ${answer.status}`);
  } catch {
    return `status ${answer.status}`;
  }
}

/** Does something for the operator and says how it went. */
export async function act(name, method, path, body) {
  try {
    const told = await call(method, path, body);
    toast(told.message ?? `${name}: done`);
    return told;
  } catch (error) {
    toast(`${name}: ${error.message}`, "bad");
    return null;
  }
}

export function toast(text, kind = "good") {
  const box = document.getElementById("toasts");
  const note = el("p", { class: `toast ${kind}` }, text);
  box.append(note);
  while (box.children.length > 4) box.firstElementChild.remove();
  setTimeout(() => note.remove(), kind === "bad" ? 9000 : 5000);
}

/** A part of an address; names of models have slashes, which the daemon reads as such. */
export function part(name) {
  return encodeURIComponent(name).replaceAll("%2F", "/");
}
