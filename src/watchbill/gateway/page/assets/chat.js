// The chat box: try any model, or two side by side with the same words.

import { headers, toast, words } from "./api.js";
import { button, el, mark, panel, say } from "./dom.js";
import { duration } from "./format.js";
import { live, touches } from "./live.js";

export function chatView() {
  const { section, head } = panel("Try a model", "chat");
  const prompt = el("textarea", { rows: "3", placeholder: "Say something", "aria-label": "Message" });
  const send = el("button", { class: "main", type: "submit" }, "Send");
  const stop = button("Stop", () => seats.forEach((seat) => seat.stop()), { class: "quiet", disabled: true });
  const anew = button("New chat", () => seats.forEach((seat) => seat.clear()), { class: "quiet" });
  const two = el("input", { type: "checkbox" });
  const form = el("form", { class: "chat-form" }, prompt, el("div", { class: "hand" }, send, stop, anew));
  const table = el("div", { class: "seats" });
  head.append(el("label", { class: "check" }, two, "Two side by side"));
  section.append(table, form);
  const seats = [seat("First model", () => busy()), seat("Second model", () => busy())];
  table.append(...seats.map((each) => each.element));

  function shown() {
    return two.checked ? seats : seats.slice(0, 1);
  }

  function busy() {
    mark(stop, "disabled", !seats.some((each) => each.isBusy));
    mark(send, "disabled", shown().some((each) => each.isBusy));
  }

  function layout() {
    mark(table, "data-two", two.checked);
    seats[1].element.hidden = !two.checked;
    busy();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = prompt.value.trim();
    if (!text || shown().some((each) => each.isBusy)) return;
    prompt.value = "";
    for (const each of shown()) each.say(text);
    prompt.focus();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  two.addEventListener("change", layout);
  layout();
  return {
    section,
    update(changed) {
      if (touches(changed, "models")) seats.forEach((each, n) => each.offer([...live.table("models").keys()], n));
    },
  };
}

function seat(label, onchange) {
  const choice = el("select", { "aria-label": label });
  const talk = el("div", { class: "talk", role: "log", "aria-label": `Conversation with the ${label.toLowerCase()}`, tabindex: "0" });
  const element = el("div", { class: "seat" }, choice, talk);
  let messages = [], control = null;
  const self = {
    element,
    get isBusy() { return control !== null; },
    offer(models, n) {
      if (choice.options.length === models.length && models.every((name, at) => choice.options[at].value === name)) return;
      const before = choice.value;
      choice.replaceChildren(...models.map((name) => el("option", { value: name }, name)));
      choice.value = models.includes(before) ? before : models[Math.min(n, models.length - 1)] ?? "";
    },
    stop() { control?.abort(); },
    clear() {
      self.stop();
      messages = [];
      talk.replaceChildren();
    },
    async say(text) {
      messages.push({ role: "user", content: text });
      talk.append(el("p", { class: "mine" }, text));
      control = new AbortController();
      onchange();
      try {
        await answer(choice.value, messages, talk, control.signal);
      } catch (error) {
        if (error.name !== "AbortError") {
          talk.append(el("p", { class: "failed" }, error.message));
          toast(error.message, "bad");
        }
      } finally {
        control = null;
        onchange();
      }
    },
  };
  return self;
}

/** Streams one answer into the conversation. */
async function answer(model, messages, talk, signal) {
  const began = performance.now();
  const said = el("p", { class: "theirs" }), facts = el("p", { class: "why" }, "waiting for its turn");
  talk.append(said, facts);
  talk.scrollTop = talk.scrollHeight;
  const body = JSON.stringify({ model, messages, stream: true });
  const reply = await fetch("v1/chat/completions", { method: "POST", headers: headers({ "Content-Type": "application/json" }), body, signal });
  if (!reply.ok) {
    facts.remove();
    throw new Error(await words(reply));
  }
  const told = { text: "", first: 0, tokens: 0 };
  try {
    await read(reply, (event) => take(event, told, said, talk));
  } finally {
    if (told.text) messages.push({ role: "assistant", content: told.text });
    say(facts, measured(reply, told, began));
  }
}

async function read(reply, take) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") take(JSON.parse(line.slice(6)));
    }
  }
}

function take(event, told, said, talk) {
  if (event.error) throw new Error(event.error.message ?? String(event.error));
  const delta = event.choices?.[0]?.delta ?? {};
  const text = delta.content ?? delta.reasoning_content ?? "";
  if (!text) return;
  told.first ||= performance.now();
  told.tokens += 1;
  told.text += delta.content ?? "";
  const atEnd = talk.scrollTop + talk.clientHeight >= talk.scrollHeight - 40;
  said.append(text);
  if (atEnd) talk.scrollTop = talk.scrollHeight;
}

function measured(reply, told, began) {
  const served = reply.headers.get("X-Watchbill-Model"), waited = Number(reply.headers.get("X-Watchbill-Wait-Ms") ?? 0);
  if (!told.first) return "no answer";
  const span = (performance.now() - told.first) / 1000;
  const speed = told.tokens > 1 && span > 0 ? `${((told.tokens - 1) / span).toFixed(1)} tokens/s` : "";
  return [served, `first word after ${duration(told.first - began)}`, waited > 500 ? `waited ${duration(waited)}` : "", speed].filter(Boolean).join(" · ");
}
