// OpenAI's own client: chat with a tool, streamed and whole; responses; several completions; models; an error.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE + "/v1", apiKey: "x", maxRetries: 0 });
const tools = [{ type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } }];
const messages = [{ role: "user", content: "What do you see?" }];
const told = {};

const first = await client.chat.completions.create({ model: "a", messages, tools });
const call = first.choices[0].message.tool_calls[0];
told.call = [call.function.name, JSON.parse(call.function.arguments)];
messages.push(first.choices[0].message, { role: "tool", tool_call_id: call.id, content: "a cow" });
let text = "";
for await (const chunk of await client.chat.completions.create({ model: "a", messages, tools, stream: true }))
  text += chunk.choices[0]?.delta?.content ?? "";
told.streamed = text;
const response = await client.responses.create({ model: "a", input: "hi", store: false });
told.response = response.output_text;
const events = [];
for await (const event of await client.responses.create({ model: "a", input: "hi", stream: true, store: false })) events.push(event.type);
told.events = [events[0], events.at(-1)];
told.models = (await client.models.list()).data.map((model) => model.id);
try {
  await client.chat.completions.create({ model: "nope", messages });
} catch (error) {
  told.error = [error.status, error.code];
}
console.log(JSON.stringify(told));
