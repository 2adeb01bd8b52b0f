// The official client of OpenAI for Node.

import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { BASE_URL, EMBEDDING_MODEL, KEY, MODEL, check, checkColours, checkVectors, feature, run } from './features.mjs';

const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0 });
const model = MODEL;
const messages = [{ role: 'user', content: 'Hello' }];
const Paint = z.object({ colour: z.enum(['red', 'green']), count: z.number().int().min(0).max(9) });
const parameters = { ...z.toJSONSchema(Paint), additionalProperties: false };
const tools = [{ type: 'function', function: { name: 'paint', parameters, strict: true } }];

feature('models', async () => {
  const ids = [];
  for await (const each of client.models.list()) ids.push(each.id);
  check(ids.includes(model), model);
});

feature('chat', async () => {
  const answer = await client.chat.completions.create({ model, messages, max_tokens: 16 });
  check(answer.usage.completion_tokens > 0, 'usage');
});

feature('chat, streamed, with usage', async () => {
  const stream = await client.chat.completions.create({
    model, messages, max_tokens: 16, stream: true, stream_options: { include_usage: true },
  });
  let [text, usage] = ['', null];
  for await (const event of stream) {
    text += event.choices[0]?.delta?.content ?? '';
    usage = event.usage ?? usage;
  }
  check(text && usage.completion_tokens > 0, 'text and usage');
});

feature('chat, stream aborted', async () => {
  const stream = await client.chat.completions.create({ model, messages, max_tokens: 500, stream: true });
  for await (const _ of stream) break;
  check(stream.controller.signal.aborted, 'an aborted stream');
});

feature('tools, forced', async () => {
  const answer = await client.chat.completions.create({
    model, messages, tools, max_tokens: 200, tool_choice: { type: 'function', function: { name: 'paint' } },
  });
  checkColours(JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments));
});

feature('structured output', async () => {
  const answer = await client.chat.completions.parse({
    model, messages, max_tokens: 200, response_format: zodResponseFormat(Paint, 'paint'),
  });
  checkColours(answer.choices[0].message.parsed);
});

feature('tools, streamed, with the result sent back', async () => {
  const stream = client.chat.completions.stream({
    model, messages, tools, max_tokens: 200, tool_choice: { type: 'function', function: { name: 'paint' } },
  });
  const message = (await stream.finalChatCompletion()).choices[0].message;
  const [call] = message.tool_calls;
  checkColours(JSON.parse(call.function.arguments));
  const said = { role: 'assistant', content: message.content, tool_calls: [{ id: call.id, type: 'function', function: { name: 'paint', arguments: call.function.arguments } }] };
  const answer = await client.chat.completions.create({
    model, tools, max_tokens: 16, tool_choice: 'none',
    messages: [...messages, said, { role: 'tool', tool_call_id: call.id, content: 'done' }],
  });
  check(answer.usage.prompt_tokens > 20, 'the call and its result in the prompt');
});

feature('embeddings', async () => {
  const answer = await client.embeddings.create({ model: EMBEDDING_MODEL, input: ['the river', 'the sea'] });
  checkVectors(answer.data.map((each) => each.embedding), 2);
  check(answer.usage.prompt_tokens > 0, 'usage');
  const shorter = await client.embeddings.create({ model: EMBEDDING_MODEL, input: 'the river', dimensions: 8 });
  check(shorter.data[0].embedding.length === 8, '8 dimensions');
});

feature('text completion', async () => {
  const answer = await client.completions.create({ model, prompt: 'one', max_tokens: 8 });
  check(answer.choices.length === 1, 'one choice');
});

feature('errors', async () => {
  const stranger = new OpenAI({ baseURL: BASE_URL, apiKey: 'pen_live_wrong', maxRetries: 0 });
  const raised = await stranger.chat.completions.create({ model, messages }).catch((error) => error);
  check(raised instanceof OpenAI.AuthenticationError, 'AuthenticationError');
  const other = await client.chat.completions.create({ model: 'no/such-model', messages }).catch((error) => error);
  check(other instanceof OpenAI.NotFoundError, 'NotFoundError');
});

feature('responses', async () => {
  const answer = await client.responses.create({ model, input: 'Hello', max_output_tokens: 16 });
  check(answer.usage.output_tokens > 0, 'usage');
});

feature('responses, streamed', async () => {
  const kinds = [];
  const stream = await client.responses.create({ model, input: 'Hello', max_output_tokens: 16, stream: true });
  for await (const event of stream) kinds.push(event.type);
  check(kinds[0] === 'response.created' && kinds.includes('response.output_text.delta'), `the events, not ${kinds}`);
});

feature('responses, tools', async () => {
  const answer = await client.responses.create({
    model, input: 'Hello', max_output_tokens: 200, tool_choice: { type: 'function', name: 'paint' },
    tools: [{ type: 'function', name: 'paint', parameters, strict: true }],
  });
  checkColours(JSON.parse(answer.output.find((item) => item.type === 'function_call').arguments));
});

feature('responses, structured output', async () => {
  const answer = await client.responses.parse({
    model, input: 'Hello', max_output_tokens: 200, text: { format: zodTextFormat(Paint, 'paint') },
  });
  checkColours(answer.output_parsed);
});

feature('responses, continued, retrieved and deleted', async () => {
  const first = await client.responses.create({ model, input: 'Hello', max_output_tokens: 16 });
  const second = await client.responses.create({
    model, input: 'Again', max_output_tokens: 16, previous_response_id: first.id,
  });
  check(second.usage.input_tokens > first.usage.input_tokens, 'the first turn in the prompt of the second');
  check((await client.responses.retrieve(second.id)).output_text === second.output_text, 'the stored text');
  await client.responses.delete(first.id);
  const raised = await client.responses.retrieve(first.id).catch((error) => error);
  check(raised instanceof OpenAI.NotFoundError, 'NotFoundError');
});

async function ended(response) {
  const until = Date.now() + 120_000;
  while (['queued', 'in_progress'].includes(response.status)) {
    check(Date.now() < until, `an end, not ${response.status}`);
    await new Promise((resolve) => setTimeout(resolve, 200));
    response = await client.responses.retrieve(response.id);
  }
  return response;
}

feature('responses, in the background', async () => {
  const queued = await client.responses.create({ model, input: 'Hello', max_output_tokens: 16, background: true });
  check(['queued', 'in_progress'].includes(queued.status), `a response that runs, not ${queued.status}`);
  const answer = await ended(queued);
  check(['completed', 'incomplete'].includes(answer.status), `an answer, not ${answer.status}`);
  check(answer.usage.output_tokens > 0, 'usage');
});

feature('responses, in the background, streamed again and cancelled', async () => {
  const stream = await client.responses.create({
    model, input: 'Hello', max_output_tokens: 20_000, ignore_eos: true, background: true, stream: true,
  });
  let first = null;
  for await (const event of stream) {
    first ??= event;
    if (event.type.endsWith('.delta')) break;
  }
  const id = first.response.id;
  const again = await client.responses.retrieve(id, { stream: true, starting_after: first.sequence_number });
  for await (const event of again) {
    check(event.sequence_number === first.sequence_number + 1, 'the next event');
    break;
  }
  const cancelled = await client.responses.cancel(id);
  check(cancelled.status === 'cancelled' && cancelled.usage.output_tokens > 0, 'a cancelled response with its usage');
  check((await client.responses.retrieve(id)).status === 'cancelled', 'the stored status');
});

await run();
