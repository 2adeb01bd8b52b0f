// The Vercel AI SDK with its providers: openai-compatible, openai (chat and responses), OpenRouter, anthropic.

import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { createOpenRouter } from '@openrouter/ai-sdk-provider';
import { APICallError, Output, embedMany, generateText, streamText, tool } from 'ai';
import { z } from 'zod';
import { BASE_URL, EMBEDDING_MODEL, KEY, MODEL, check, checkColours, checkVectors, feature, run } from './features.mjs';

const ours = { baseURL: BASE_URL, apiKey: KEY };
const openai = createOpenAI(ours);
const compatible = createOpenAICompatible({ ...ours, name: 'penstock', includeUsage: true, supportsStructuredOutputs: true });
const providers = {
  'openai-compatible': compatible(MODEL),
  'openai, chat': openai.chat(MODEL),
  OpenRouter: createOpenRouter({ ...ours, compatibility: 'strict' }).chat(MODEL),
  'openai, responses': openai.responses(MODEL),
  anthropic: createAnthropic(ours)(MODEL),
};
const Paint = z.object({ colour: z.enum(['red', 'green']), count: z.number().int().min(0).max(9) });
const base = { prompt: 'Hello', maxRetries: 0 };

for (const [name, model] of Object.entries(providers)) {
  feature(`${name}: text`, async () => {
    const answer = await generateText({ ...base, model, maxOutputTokens: 16 });
    check(answer.usage.outputTokens > 0, 'usage');
  });

  feature(`${name}: stream with usage`, async () => {
    let failure = null;
    const answer = streamText({ ...base, model, maxOutputTokens: 16, onError: ({ error }) => { failure = error; } });
    let text = '';
    for await (const piece of answer.textStream) text += piece;
    if (failure) throw failure;
    check(text && (await answer.usage).outputTokens > 0, 'text and usage');
  });

  feature(`${name}: forced tool`, async () => {
    const tools = { paint: tool({ description: 'Paint the wall', inputSchema: Paint }) };
    const answer = await generateText({ ...base, model, tools, maxOutputTokens: 200, toolChoice: { type: 'tool', toolName: 'paint' } });
    checkColours(answer.toolCalls[0].input);
  });

  feature(`${name}: forced tool, streamed`, async () => {
    let failure = null;
    const tools = { paint: tool({ description: 'Paint the wall', inputSchema: Paint }) };
    const answer = streamText({
      ...base, model, tools, maxOutputTokens: 200, toolChoice: { type: 'tool', toolName: 'paint' },
      onError: ({ error }) => { failure = error; },
    });
    for await (const _ of answer.fullStream);
    if (failure) throw failure;
    checkColours((await answer.toolCalls)[0].input);
  });

  feature(`${name}: structured output`, async () => {
    const answer = await generateText({ ...base, model, maxOutputTokens: 200, output: Output.object({ schema: Paint }) });
    checkColours(answer.output);
  });
}

for (const [name, model] of [
  ['openai-compatible', compatible.textEmbeddingModel(EMBEDDING_MODEL)],
  ['openai', openai.textEmbeddingModel(EMBEDDING_MODEL)],
]) {
  feature(`${name}: embeddings`, async () => {
    const answer = await embedMany({ model, values: ['the river', 'the sea'], maxRetries: 0 });
    checkVectors(answer.embeddings, 2);
    check(answer.usage.tokens > 0, 'usage');
  });
}

feature('openai, responses: continued by previousResponseId', async () => {
  const model = providers['openai, responses'];
  const first = await generateText({ ...base, model, maxOutputTokens: 16 });
  const previousResponseId = first.providerMetadata.openai.responseId;
  const second = await generateText({
    ...base, model, maxOutputTokens: 16, providerOptions: { openai: { previousResponseId } },
  });
  check(second.usage.inputTokens > first.usage.inputTokens, 'the first turn in the prompt of the second');
});

feature('openai: errors', async () => {
  const model = createOpenAI({ ...ours, apiKey: 'pen_live_wrong' }).chat(MODEL);
  const raised = await generateText({ ...base, model }).catch((error) => error);
  check(APICallError.isInstance(raised) && raised.statusCode === 401, 'APICallError 401');
});

await run();
