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
console.log(JSON.stringify(told));
