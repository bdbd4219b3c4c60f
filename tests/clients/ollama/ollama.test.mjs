// Ollama's official client for JavaScript. Needs RUVLLM_TEST_OLLAMA_URL and RUVLLM_TEST_MODEL (see tests/clients/run).

import assert from "node:assert/strict";
import test from "node:test";
import { Ollama } from "ollama";

const model = process.env.RUVLLM_TEST_MODEL;
const client = new Ollama({ host: process.env.RUVLLM_TEST_OLLAMA_URL });
const options = { temperature: 0, num_predict: 24 };
const question = { model, messages: [{ role: "user", content: "Name three colours." }], options };

test("an answer, whole and streamed", async () => {
  const answer = await client.chat(question);
  assert.ok(answer.done && answer.eval_count > 0 && answer.total_duration > 0);
  let text = "";
  for await (const part of await client.chat({ ...question, stream: true })) text += part.message.content;
  assert.equal(text, answer.message.content);
  assert.ok((await client.generate({ model, prompt: "Hello", options })).response.length > 0);
});

test("a stream that is broken off ends the generation", async () => {
  const stream = await client.chat({ ...question, stream: true, options: { num_predict: 2000 } });
  let parts = 0;
  for await (const _ of stream) if (++parts === 5) break;
  stream.abort();
  assert.ok((await client.chat(question)).done);
});

test("structured output", async () => {
  const format = { type: "object", properties: { n: { type: "integer", minimum: 3, maximum: 9 } }, required: ["n"] };
  const { n } = JSON.parse((await client.chat({ ...question, format })).message.content);
  assert.ok(n >= 3 && n <= 9);
});

test("tools and their results", async () => {
  const tools = [{ type: "function", function: { name: "look", description: "", parameters: { type: "object", properties: { at: { type: "string" } }, required: ["at"] } } }];
  const called = { role: "assistant", content: "", tool_calls: [{ function: { name: "look", arguments: { at: "the sky" } } }] };
  const messages = [...question.messages, called, { role: "tool", tool_name: "look", content: "It is blue." }];
  assert.ok((await client.chat({ ...question, messages, tools })).done);
});

test("models are listed, shown, made, copied and removed", async () => {
  assert.ok((await client.list()).models.some((listed) => listed.name === `${model}:latest`));
  assert.ok((await client.show({ model })).capabilities.includes("tools"));
  assert.equal((await client.create({ model: "poet", from: model, system: "Rhyme.", parameters: { num_predict: 3 } })).status, "success");
  assert.equal((await client.chat({ ...question, model: "poet", options: {} })).eval_count, 3);
  await client.copy({ source: "poet", destination: "bard" });
  for (const name of ["bard", "poet"]) await client.delete({ model: name });
  await assert.rejects(client.show({ model: "bard" }), /not found/);
  assert.equal((await client.pull({ model })).status, "success");
  assert.ok((await client.ps()).models.length > 0);
  assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
});

test("embeddings", async () => {
  const { embeddings } = await client.embed({ model: "minilm", input: ["a", "b"] });
  assert.deepEqual(embeddings.map((vector) => vector.length), [384, 384]);
});
