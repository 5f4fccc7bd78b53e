// The Vercel AI SDK: one job a line on stdin, one result a line on stdout (see ../driving.py).
// Ways: compatible (@ai-sdk/openai-compatible) and openai (@ai-sdk/openai, `.chat`).

import { createInterface } from "node:readline";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, streamText, tool } from "ai";

globalThis.AI_SDK_LOG_WARNINGS = false;

function model(job) {
  const settings = { baseURL: job.base_url, apiKey: "none", headers: job.headers };
  if (job.way === "openai") return createOpenAI(settings).chat(job.body.model);
  const includeUsage = Boolean(job.body.stream_options);
  return createOpenAICompatible({ ...settings, name: "house", includeUsage, supportsStructuredOutputs: true })(
    job.body.model,
  );
}

function asked(job, called = []) {
  const { messages, tools, response_format: format, max_tokens: maxOutputTokens } = job.body;
  const named = (tools ?? []).map(({ function: { name, description, parameters } }) => [
    name,
    tool({
      description,
      inputSchema: jsonSchema(parameters),
      execute: (input) => {
        called.push([name, input]);
        return "done";
      },
    }),
  ]);
  return {
    model: model(job),
    messages,
    maxRetries: job.retries,
    ...(maxOutputTokens ? { maxOutputTokens } : {}),
    ...(named.length ? { tools: Object.fromEntries(named) } : {}),
    ...(format ? { output: Output.object({ schema: jsonSchema(format.json_schema.schema) }) } : {}),
  };
}

function takeUsage(result, usage) {
  if (usage.inputTokens !== undefined) {
    result.usages.push([usage.inputTokens, usage.outputTokens, usage.totalTokens]);
  }
}

async function whole(job, result) {
  const told = await generateText(asked(job));
  const { response } = told.finalStep;
  result.watched = response.headers?.["x-continuation"] ?? null;
  result.ids.push(response.id);
  takeUsage(result, told.usage);
  Object.assign(result.choices[0], {
    reasoning: told.finalStep.reasoningText ?? "",
    content: told.text,
    finish: [told.rawFinishReason],
    tools: told.toolCalls.map(({ toolCallId, toolName, input }) => ({
      id: toolCallId,
      name: toolName,
      arguments: JSON.stringify(input),
    })),
  });
}

async function streamed(job, result) {
  const [into] = result.choices;
  const { extra } = result;
  Object.assign(extra, { starts: {}, told: [], finish: null, called: [] });
  const stream = streamText({
    ...asked(job, extra.called),
    onError: ({ error }) => {
      extra.told.push(error?.message ?? String(error));
    },
  });
  const inputs = new Map();
  for await (const part of stream.stream) {
    switch (part.type) {
      case "reasoning-delta":
        into.reasoning += part.text;
        break;
      case "text-delta":
        into.content += part.text;
        break;
      case "tool-input-start":
        inputs.set(part.id, { id: part.id, name: part.toolName, arguments: "" });
        into.tools.push(inputs.get(part.id));
        break;
      case "tool-input-delta":
        inputs.get(part.id).arguments += part.delta;
        break;
      case "finish-step":
        result.ids.push(part.response.id);
        result.watched = part.response.headers?.["x-continuation"] ?? null;
        break;
      case "finish":
        extra.finish = part.finishReason;
        if (part.rawFinishReason) into.finish.push(part.rawFinishReason);
        takeUsage(result, part.totalUsage);
        break;
      case "error":
        result.error = errorOf(part.error);
        break;
    }
    if (/^(text|reasoning)-(start|end)$/.test(part.type)) {
      extra.starts[part.type] = (extra.starts[part.type] ?? 0) + 1;
    }
  }
  extra.text = await stream.text.catch((error) => error.constructor.name);
  if (job.body.response_format) extra.output = await stream.output.catch((error) => error.constructor.name);
  extra.textStream = await readAgain(stream);
}

// What a program sees that reads `textStream` alone: the text, or the error that it throws.
async function readAgain(stream) {
  let text = "";
  try {
    for await (const delta of stream.textStream) text += delta;
  } catch (error) {
    return error.constructor.name;
  }
  return text;
}

function errorOf(trouble) {
  const names = [];
  for (let at = Object.getPrototypeOf(trouble); at !== null; at = Object.getPrototypeOf(at)) {
    names.push(at.constructor.name);
  }
  const cause = trouble.lastError ?? trouble;
  return {
    kinds: names.map((name) => name.replace(/^_/, "")),
    status: cause.statusCode ?? null,
    type: cause.type ?? cause.data?.type ?? cause.data?.error?.type ?? null,
    code: cause.code ?? cause.data?.code ?? cause.data?.error?.code ?? null,
    retryable: cause.isRetryable ?? null,
    message: trouble.message,
  };
}

async function run(job) {
  const choice = { reasoning: "", content: "", finish: [], tools: [] };
  const result = { choices: [choice], ids: [], usages: [], watched: null, error: null, extra: {} };
  try {
    await (job.body.stream ? streamed : whole)(job, result);
  } catch (trouble) {
    result.error = errorOf(trouble);
  }
  return result;
}

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
say({ ready: true });
for await (const line of createInterface({ input: process.stdin })) say(await run(JSON.parse(line)));
