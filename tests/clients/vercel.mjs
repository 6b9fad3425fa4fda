// Vercel's AI SDK with its default for OpenAI (the Responses API) and with chat: a tool that it runs itself, streams, objects.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: process.env.BASE + "/v1", apiKey: "x" });
const look = tool({ description: "looks", inputSchema: z.object({}), execute: async () => "a cow" });
const told = {};
for (const [name, model] of [["responses", openai("a")], ["chat", openai.chat("a")]]) {
  const whole = await generateText({ model, prompt: "What do you see?", tools: { look }, stopWhen: stepCountIs(3), maxRetries: 0 });
  const streamed = streamText({ model, prompt: "What do you see?", tools: { look }, stopWhen: stepCountIs(3), maxRetries: 0 });
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  told[name] = [whole.text, whole.steps.length, text];
}
const thinks = { openai: { reasoningSummary: "auto", forceReasoning: true } };
const thought = await generateText({ model: openai("a"), prompt: "Think.", providerOptions: thinks, maxRetries: 0 });
const thinking = streamText({ model: openai("a"), prompt: "Think.", providerOptions: thinks, maxRetries: 0 });
let shown = "";
for await (const part of thinking.fullStream) if (part.type === "reasoning-delta") shown += part.text;
told.thoughts = [thought.reasoningText, shown];
console.log(JSON.stringify(told));
