// Anthropic's own client: a message with a tool, its result, a stream, a count of tokens, an error.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.BASE, apiKey: "x", maxRetries: 0 });
const tools = [{ name: "look", description: "looks", input_schema: { type: "object", properties: {} } }];
const messages = [{ role: "user", content: "What do you see?" }];
const told = {};
const first = await client.messages.create({ model: "a", max_tokens: 50, messages, tools });
const use = first.content.find((block) => block.type === "tool_use");
told.call = [use.name, use.input, first.stop_reason];
messages.push({ role: "assistant", content: first.content });
messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "a cow" }] });
const stream = client.messages.stream({ model: "a", max_tokens: 50, messages, tools });
told.streamed = (await stream.finalMessage()).content[0].text;
told.tokens = (await client.messages.countTokens({ model: "a", messages, tools })).input_tokens > 0;
try {
  await client.messages.create({ model: "nope", max_tokens: 5, messages });
} catch (error) {
  told.error = [error.status, error.error.error.type];
}
console.log(JSON.stringify(told));
