// OpenAI's official client for Node: chat completions, streaming with tools, responses, errors.
// Needs RUVLLM_TEST_URL and RUVLLM_TEST_MODEL (see tests/clients/run).

import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";

const model = process.env.RUVLLM_TEST_MODEL;
const client = new OpenAI({ baseURL: `${process.env.RUVLLM_TEST_URL}/v1`, apiKey: "any", maxRetries: 0 });
const question = { model, messages: [{ role: "user", content: "Name three colours." }], max_completion_tokens: 24, temperature: 0 };
const tool = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string", maxLength: 30 } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

test("an answer, whole and streamed", async () => {
  const answer = await client.chat.completions.create(question);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...question, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(text, answer.choices[0].message.content);
});

test("the client's own accumulator understands the stream of a tool call", async () => {
  const stream = client.chat.completions.stream({ ...question, tools: [tool], tool_choice: "required", parallel_tool_calls: false, max_completion_tokens: 200 });
  const answer = await stream.finalChatCompletion();
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
  assert.equal(call.function.name, "get_weather");
  assert.equal(typeof JSON.parse(call.function.arguments).city, "string");
});

test("a stream that is broken off ends the generation", async () => {
  const stream = await client.chat.completions.create({ ...question, max_completion_tokens: 4000, temperature: 1, stream: true });
  let chunks = 0;
  for await (const _ of stream) if (++chunks === 5) break;
  for (let tries = 0; ; tries++) {
    const metrics = await (await fetch(`${process.env.RUVLLM_TEST_URL}/metrics`)).text();
    if (/vllm:num_requests_running\{[^}]*\} 0/.test(metrics)) break;
    assert.ok(tries < 100, "the request still runs");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
});

test("responses, whole and streamed", async () => {
  const request = { model, input: "Name three colours.", max_output_tokens: 24, temperature: 0 };
  const answer = await client.responses.create(request);
  assert.ok(answer.output_text.length > 0);
  let text = "";
  for await (const event of await client.responses.create({ ...request, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, answer.output_text);
});

test("errors name the field", async () => {
  await assert.rejects(client.chat.completions.create({ ...question, n: 1e9 }), (error) => error.status === 400 && error.param === "n");
  await assert.rejects(client.chat.completions.create({ ...question, model: "none" }), (error) => error.status === 404);
});
