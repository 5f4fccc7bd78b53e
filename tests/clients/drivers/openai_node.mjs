// The openai package of npm: one job a line on stdin, one result a line on stdout (see ../driving.py).
// Ways: create, and helper (`chat.completions.stream`, and the completion that it adds up).

import { createInterface } from "node:readline";
import OpenAI from "openai";

const kept = new Map();

// Kept from job to job, as programs do: what one stream leaves behind, the next one meets.
function client(job) {
  const key = `${job.base_url} ${job.retries}`;
  if (!kept.has(key)) {
    kept.set(
      key,
      new OpenAI({ baseURL: job.base_url, apiKey: "none", maxRetries: job.retries, timeout: 60_000, logLevel: "off" }),
    );
  }
  return kept.get(key);
}

function choice(result, index) {
  while (result.choices.length <= index) {
    result.choices.push({ reasoning: "", content: "", finish: [], tools: [] });
  }
  return result.choices[index];
}

function take(result, chunk) {
  if (!result.ids.includes(chunk.id)) result.ids.push(chunk.id);
  if (chunk.usage) takeUsage(result, chunk.usage);
  for (const each of chunk.choices) {
    const into = choice(result, each.index);
    into.reasoning += each.delta.reasoning ?? each.delta.reasoning_content ?? "";
    into.content += each.delta.content ?? "";
    if (each.finish_reason) into.finish.push(each.finish_reason);
    for (const call of each.delta.tool_calls ?? []) {
      if (call.id) into.tools.push({ id: call.id, name: "", arguments: "" });
      const tool = into.tools[call.index];
      tool.name += call.function?.name ?? "";
      tool.arguments += call.function?.arguments ?? "";
    }
  }
}

function takeUsage(result, usage) {
  result.usages.push([usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]);
}

function takeWhole(result, completion) {
  result.ids.push(completion.id);
  if (completion.usage) takeUsage(result, completion.usage);
  for (const { index, message, finish_reason } of completion.choices) {
    const tools = (message.tool_calls ?? []).map((call) => ({
      id: call.id,
      name: call.function.name,
      arguments: call.function.arguments,
    }));
    Object.assign(choice(result, index), {
      reasoning: message.reasoning ?? message.reasoning_content ?? "",
      content: message.content ?? "",
      finish: [finish_reason],
      tools,
    });
  }
}

async function create(job, result) {
  const { data, response } = await client(job)
    .chat.completions.create(job.body, { headers: job.headers })
    .withResponse();
  result.watched = response.headers.get("x-continuation");
  if (!job.body.stream) {
    takeWhole(result, data);
    return;
  }
  for await (const chunk of data) take(result, chunk);
}

async function helper(job, result) {
  const events = new Set();
  const stream = client(job).chat.completions.stream(job.body, { headers: job.headers });
  for (const name of ["content.done", "tool_calls.function.arguments.done", "finalContent", "error", "end"]) {
    stream.on(name, () => events.add(name));
  }
  stream.on("chunk", (chunk) => take(result, chunk));
  let added = "";
  stream.on("content", (delta) => {
    added += delta;
  });
  try {
    const final = await stream.finalChatCompletion();
    const { message, finish_reason } = final.choices[0];
    result.extra.final = {
      content: message.content,
      finish: finish_reason,
      tools: (message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
    };
  } finally {
    result.extra.added = added;
    result.extra.events = [...events].sort();
  }
}

function kinds(trouble) {
  const names = [];
  for (let at = Object.getPrototypeOf(trouble); at !== null; at = Object.getPrototypeOf(at)) {
    names.push(at.constructor.name);
  }
  return names;
}

async function run(job) {
  const result = { choices: [], ids: [], usages: [], watched: null, error: null, extra: {} };
  try {
    await (job.way === "create" ? create : helper)(job, result);
  } catch (trouble) {
    result.error = {
      kinds: kinds(trouble),
      status: trouble.status ?? null,
      type: trouble.type ?? null,
      code: trouble.code ?? null,
      message: trouble.message,
    };
  }
  return result;
}

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
say({ ready: true });
for await (const line of createInterface({ input: process.stdin })) say(await run(JSON.parse(line)));
