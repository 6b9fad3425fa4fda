// Ollama's own client: chat with a tool, a stream, names that are made and deleted, a pull with its progress, an error.
import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.BASE });
const tools = [{ type: "function", function: { name: "look", description: "looks", parameters: { type: "object", properties: {} } } }];
const messages = [{ role: "user", content: "What do you see?" }];
const told = {};
const first = await client.chat({ model: "a", messages, tools });
told.call = [first.message.tool_calls[0].function.name, first.message.tool_calls[0].function.arguments];
messages.push(first.message, { role: "tool", tool_name: "look", content: "a cow" });
let text = "";
for await (const part of await client.chat({ model: "a", messages, tools, stream: true })) text += part.message.content;
told.streamed = text;
const steps = [];
for await (const step of await client.pull({ model: "a", stream: true })) steps.push(step.status);
told.pulled = [steps[0], steps.at(-1)];
await client.create({ model: "mine", from: "a", system: "Be brief." });
await client.copy({ source: "mine", destination: "other" });
told.names = (await client.list()).models.map((model) => model.name).sort();
told.shown = (await client.show({ model: "other" })).system;
await client.delete({ model: "mine" });
await client.delete({ model: "other" });
const generated = await client.generate({ model: "a", prompt: "hi" });
told.context = generated.context.length > 0;
told.version = (await client.version()).version;
try {
  await client.chat({ model: "nope", messages });
} catch (error) {
  told.error = [error.status_code, error.error];
}
console.log(JSON.stringify(told));
