// The JavaScript client under Node, against a server that answers as told: `node --test tests/browser`.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { afterEach, beforeEach, test } from "node:test";

import {
  EventParser,
  ResumableStream,
  StreamError,
  backoff,
  retryAfter,
} from "../../continuation/static/continuation/resumable.js";

const ID = "0123456789abcdef0123456789abcdef";
const PATIENCE = 20_000;
const ENCODER = new TextEncoder();

// -- a server that answers as told -------------------------------------------------------------------

let server, url, script, asked;

beforeEach(async () => {
  script = [];
  asked = [];
  server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    asked.push({ method: request.method, url: request.url, headers: request.headers, body });
    const next = script.shift();
    if (next) await next(response, request);
    else response.writeHead(599).end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  url = `http://127.0.0.1:${server.address().port}/v1/chat/completions`;
});

afterEach(async () => {
  server.closeAllConnections();
  server.close();
  await once(server, "close");
  assert.deepEqual(script, [], "something was never asked for");
});

const head = (more = {}) => ({
  "Content-Type": "text/event-stream; charset=utf-8",
  "X-Stream-Id": ID,
  "X-Resume-Token": "token-1",
  ...more,
});
const event = (id, data) => `id: ${id}\ndata: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`;
const words = (from, to) => {
  let text = "";
  for (let id = from; id <= to; id += 1) text += event(id, { n: id });
  return text;
};
const FAILED = { error: { message: "The stream was interrupted.", type: "stream_interrupted", code: "eof" } };

// What the server does with a request. `then`: what comes after the text, "end", "break" or "hold".
const streamed = (text, { then = "end", headers = {} } = {}) => async (response) => {
  response.writeHead(200, head(headers));
  await new Promise((written) => response.write(text || ": \n", written));
  if (then === "end") response.end();
  if (then === "break") setImmediate(() => response.socket.destroy());
};
const refused = (status, error, headers = {}) => (response) => {
  response.writeHead(status, { "Content-Type": "application/json", ...headers });
  response.end(JSON.stringify({ error }));
};
const hangUp = (response) => response.socket.destroy();

// -- a reader ----------------------------------------------------------------------------------------

class MemoryPlace {
  kept = new Map();
  getItem = (key) => this.kept.get(key) ?? null;
  setItem = (key, value) => void this.kept.set(key, value);
  removeItem = (key) => void this.kept.delete(key);
}

const QUICK = { base: 1, cap: 2 };
const asking = (more = {}) => new ResumableStream({ url, body: { model: "m", messages: [] }, retry: QUICK, ...more });

// All that a stream gives: {events, ids, states, error}.
async function read(stream, onEvent = () => {}) {
  const found = { events: [], error: null };
  try {
    for await (const one of stream) {
      found.events.push(one);
      await onEvent(one);
    }
  } catch (error) {
    found.error = error;
  }
  found.ids = found.events.map(({ id }) => id);
  found.final = stream.status.state;
  return found;
}

const until = async (condition) => {
  const end = Date.now() + PATIENCE;
  while (!condition()) {
    assert.ok(Date.now() < end, `waited in vain for ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
};

// -- the parser --------------------------------------------------------------------------------------

const blocksOf = (...pieces) => {
  const parser = new EventParser();
  return pieces.flatMap((piece) => parser.push(piece));
};

test("a stream of events is read alike wherever it is cut", () => {
  const text =
    "\uFEFFid: 1\ndata: one\u2028line, one\u0085 event \v\f😀\n\n" +
    ": a comment\r\nid: 2\r\nevent: kind\r\ndata: a\r\ndata:b\r\ndata:  c\r\n\r\n" +
    "data: by\rdata: return\r\r" +
    "retry: 5\nunknown: x\nid: 3\n\n" +
    "data\n\n" +
    "id: with\0nul\ndata: 文字\n\n\n" +
    "data: unfinished";
  const bytes = ENCODER.encode(text);
  const whole = blocksOf(bytes);
  assert.deepEqual(whole, [
    { id: "1", event: "message", data: "one\u2028line, one\u0085 event \v\f😀" },
    { id: "2", event: "kind", data: "a\nb\n c" },
    { id: null, event: "message", data: "by\nreturn" },
    { id: null, event: "message", data: "" },
    { id: null, event: "message", data: "文字" },
  ]);
  for (let cut = 0; cut <= bytes.length; cut += 1)
    assert.deepEqual(blocksOf(bytes.subarray(0, cut), bytes.subarray(cut)), whole, `cut at ${cut}`);
  assert.deepEqual(blocksOf(...Array.from(bytes, (_, at) => bytes.subarray(at, at + 1))), whole);
});

test("only one byte order mark is dropped, and only at the beginning", () => {
  const [first, second] = blocksOf(ENCODER.encode("data: a\n\n\uFEFFdata: b\n\ndata: \uFEFFc\n\n"));
  assert.deepEqual([first.data, second.data], ["a", "\uFEFFc"]);
});

test("an event beyond all reason is refused before it fills the memory", () => {
  const parser = new EventParser();
  const piece = ENCODER.encode("x".repeat(2 ** 22));
  parser.push(ENCODER.encode("data: "));
  for (let sent = 0; sent < 15; sent += 1) parser.push(piece);
  assert.throws(() => parser.push(piece), { name: "StreamError", kind: "too_large" });
});

// -- waits -------------------------------------------------------------------------------------------

test("waits grow to a cap, and are drawn from nothing up", () => {
  const retry = { base: 100, cap: 1000 };
  const longest = [1, 2, 3, 4, 5, 2000].map((attempt) => backoff(attempt, retry, () => 1));
  assert.deepEqual(longest, [100, 200, 400, 800, 1000, 1000]);
  assert.equal(backoff(3, retry, () => 0.25), 100);
  assert.equal(backoff(3, retry, () => 0), 0);
});

test("a server may ask for a wait in seconds or until a time", () => {
  const now = Date.parse("Mon, 30 Nov 2026 10:00:00 GMT");
  assert.equal(retryAfter("7", now), 7000);
  assert.equal(retryAfter("Mon, 30 Nov 2026 10:00:05 GMT", now), 5000);
  assert.equal(retryAfter("Mon, 30 Nov 2026 09:00:00 GMT", now), 0);
  assert.equal(retryAfter("soon", now), 0);
  assert.equal(retryAfter(null, now), 0);
});

// -- an answer without trouble -----------------------------------------------------------------------

test("an answer is asked for as resumable, and each event is given once", async () => {
  script = [streamed(words(1, 3) + event(4, "[DONE]"))];
  const states = [];
  const stream = asking({
    headers: { Authorization: "Bearer k" },
    checkpoints: true,
    onStatus: ({ state }) => states.push(state),
  });
  const found = await read(stream);
  assert.equal(found.error, null);
  assert.deepEqual(found.ids, [1, 2, 3, 4]);
  assert.deepEqual(found.events[1], { id: 2, event: "message", data: '{"n":2}', json: { n: 2 }, replayed: false });
  assert.equal(found.events[3].data, "[DONE]");
  assert.deepEqual(states, ["connecting", "live", "done"]);
  assert.deepEqual([stream.id, stream.token, stream.lastEventId, stream.resumable], [ID, "token-1", 4, true]);
  const [{ method, headers, body }] = asked;
  assert.equal(method, "POST");
  assert.deepEqual(JSON.parse(body), { model: "m", messages: [], stream: true });
  assert.equal(headers["x-resumable"], "1");
  assert.equal(headers["x-resume-events"], "1");
  assert.equal(headers.authorization, "Bearer k");
});

test("nothing is sent before the stream is read, and it is read once", async () => {
  const stream = asking();
  assert.equal(asked.length, 0);
  script = [streamed(event(1, "[DONE]"))];
  await read(stream);
  await assert.rejects(async () => void (await stream[Symbol.asyncIterator]().next()), TypeError);
});

// -- coming back -------------------------------------------------------------------------------------

test("a broken connection is gone back to behind the newest event, and what comes twice is dropped", async () => {
  script = [
    streamed(words(1, 3) + "id: 4\ndata: half an ev", { then: "break" }),
    streamed(words(2, 5), { then: "break", headers: { "X-Resume-Token": "token-2", "X-Last-Event-Id": "5" } }),
    streamed(words(6, 7) + event(8, "[DONE]"), { headers: { "X-Last-Event-Id": "6" } }),
  ];
  const statuses = [];
  const found = await read(asking({ headers: { Authorization: "k" }, onStatus: (status) => statuses.push(status) }));
  assert.equal(found.error, null);
  assert.deepEqual(found.ids, [1, 2, 3, 4, 5, 6, 7, 8]);
  assert.deepEqual(
    found.events.map(({ replayed }) => replayed),
    [false, false, false, true, true, true, false, false],
  );
  const states = statuses.map(({ state }) => state);
  assert.deepEqual(states, [
    ...["connecting", "live", "reconnecting", "replaying", "live"],
    ...["reconnecting", "replaying", "live", "done"],
  ]);
  assert.deepEqual(statuses[3], { state: "replaying", until: 5 });
  assert.equal(statuses[2].attempt, 1);
  assert.ok(statuses[2].reason);
  assert.deepEqual(
    asked.slice(1).map(({ method, url, headers }) => [method, url, headers["last-event-id"], headers["x-resume-token"]]),
    [
      ["GET", `/v1/streams/${ID}`, "3", "token-1"],
      ["GET", `/v1/streams/${ID}`, "5", "token-2"],
    ],
  );
  assert.ok(asked.every(({ headers }) => headers.authorization === "k"));
});

test("a clean end without [DONE] is a break like any other", async () => {
  script = [streamed(words(1, 2)), streamed(event(3, "[DONE]"))];
  assert.deepEqual((await read(asking())).ids, [1, 2, 3]);
});

test("an event that has been left out is fetched, and the connection that left it out is not kept", async () => {
  let gone = false;
  const leavingOut = async (response) => {
    response.on("close", () => void (gone = true));
    await streamed(words(1, 2) + words(4, 5), { then: "hold" })(response);
  };
  script = [leavingOut, streamed(words(3, 5) + event(6, "[DONE]"), { then: "hold" })];
  const found = await read(asking(), ({ id }) => id === 6 && until(() => gone));
  assert.deepEqual([found.error, found.ids], [null, [1, 2, 3, 4, 5, 6]]);
  assert.equal(asked[1].headers["last-event-id"], "2");
});

test("a token that comes inside the stream is used from then on, and shown to nobody", async () => {
  const token = 'event: resume_token\ndata: {"token": "fresh", "last_event_id": 2}\n\n';
  script = [streamed(words(1, 2) + token, { then: "break" }), streamed(event(3, "[DONE]"))];
  const found = await read(asking({ checkpoints: true }));
  assert.deepEqual(found.ids, [1, 2, 3]);
  assert.equal(asked[1].headers["x-resume-token"], "fresh");
});

test("what can be over in a moment is tried again", async () => {
  script = [
    streamed(words(1, 1), { then: "break" }),
    hangUp,
    refused(503, { code: "resume_unavailable" }),
    refused(429, {}),
    (response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<p>Please log in"),
    streamed(event(2, "[DONE]")),
  ];
  const attempts = [];
  let lives = 0;
  const onStatus = ({ state, attempt }) => {
    if (state === "reconnecting") attempts.push(attempt);
    if (state === "live") lives += 1;
  };
  const found = await read(asking({ onStatus }));
  assert.deepEqual([found.error, found.ids, attempts], [null, [1, 2], [1, 2, 3, 4, 5]]);
  assert.equal(lives, 2, "a page of HTML was taken for the stream");
});

test("attempts are counted anew once something has come", async () => {
  script = [
    streamed(words(1, 1), { then: "break" }),
    hangUp,
    streamed(words(2, 2), { then: "break" }),
    hangUp,
    streamed(event(3, "[DONE]")),
  ];
  const found = await read(asking({ retry: { ...QUICK, attempts: 2 } }));
  assert.deepEqual([found.error, found.ids], [null, [1, 2, 3]]);
});

test("connections that bring nothing count as attempts", async () => {
  script = [streamed(words(1, 1), { then: "break" }), streamed("", { then: "break" }), streamed("", { then: "break" })];
  const found = await read(asking({ retry: { base: 1, cap: PATIENCE, attempts: 2 }, random: () => 0 }));
  assert.deepEqual([found.error.kind, found.final, asked.length], ["gave_up", "failed", 3]);
});

test("a connection that stayed for long is no attempt that failed, though it brought nothing", async () => {
  const silent = async (response) => {
    await streamed("", { then: "hold" })(response);
    setTimeout(() => response.socket.destroy(), 60);
  };
  script = [streamed(words(1, 1), { then: "break" }), silent, streamed(event(2, "[DONE]"))];
  const found = await read(asking({ retry: { base: 1, cap: 10, attempts: 1 } }));
  assert.deepEqual([found.error, found.ids], [null, [1, 2]]);
});

test("after so many attempts it gives up, and says why", async () => {
  script = [streamed(words(1, 1), { then: "break" }), hangUp, refused(503, { message: "The log is away." })];
  const { error } = await read(asking({ retry: { ...QUICK, attempts: 2 } }));
  assert.ok(error instanceof StreamError);
  assert.equal(error.kind, "gave_up");
  assert.match(error.message, /503: The log is away/);
});

test("after so long it gives up", async () => {
  script = [streamed(words(1, 1), { then: "break" })];
  const { error } = await read(asking({ retry: { ...QUICK, total: 0 } }));
  assert.equal(error.kind, "gave_up");
});

test("many clients that were all asked to wait for the same time do not come back at the same moment", async () => {
  const CLIENTS = 40;
  const asks = new Map(); // requests by client
  const steps = [
    streamed(words(1, 1), { then: "break" }),
    refused(503, {}, { "Retry-After": "1" }),
    streamed(event(2, "[DONE]")),
  ];
  const answer = (response, { headers }) => {
    const client = headers["x-client"];
    const step = asks.get(client) ?? 0;
    asks.set(client, step + 1);
    return steps[step](response);
  };
  script = Array(CLIENTS * steps.length).fill(answer);
  const waits = await Promise.all(
    Array.from({ length: CLIENTS }, async (_, client) => {
      const online = new EventTarget(); // ends each wait at once
      const delays = [];
      const onStatus = ({ state, delay }) => {
        if (state !== "reconnecting") return;
        delays.push(delay);
        setImmediate(() => online.dispatchEvent(new Event("online")));
      };
      const random = () => (client + 0.5) / CLIENTS;
      const retry = { base: 300, cap: 10_000 };
      const found = await read(asking({ headers: { "X-Client": `${client}` }, online, onStatus, random, retry }));
      assert.deepEqual([found.error, found.ids, delays.length], [null, [1, 2], 2]);
      return delays[1];
    }),
  );
  const sorted = waits.sort((one, other) => one - other);
  assert.ok(sorted[0] >= 1_000, "the server is left alone for as long as it asks");
  assert.ok(sorted.at(-1) <= 1_600);
  for (let from = 1_000; from < 1_600; from += 100) {
    const together = sorted.filter((wait) => wait >= from && wait < from + 100).length;
    assert.ok(together <= CLIENTS / 5, `${together} of ${CLIENTS} come between ${from} and ${from + 100} ms`);
  }
});

test("the server is left alone for as long as it asks, but for the network's coming back", async () => {
  script = [
    streamed(words(1, 1), { then: "break" }),
    refused(503, {}, { "Retry-After": "3600" }),
    streamed(event(2, "[DONE]")),
  ];
  const online = new EventTarget();
  const delays = [];
  const onStatus = ({ state, delay }) => state === "reconnecting" && delays.push(delay);
  const reading = read(asking({ online, onStatus, retry: { ...QUICK, total: 7_200_000 } }));
  await until(() => delays.length === 2);
  assert.ok(delays[1] >= 3_600_000 && delays[1] <= 3_600_000 + QUICK.cap, `${delays[1]} ms`);
  online.dispatchEvent(new Event("online"));
  assert.deepEqual((await reading).ids, [1, 2]);
});

test("a server that asks for more than there is left to wait is not waited for", async () => {
  script = [streamed(words(1, 1), { then: "break" }), refused(503, {}, { "Retry-After": "3600" })];
  assert.equal((await read(asking())).error.kind, "gave_up");
});

test("silence for too long is a break; a comment is none", async () => {
  const beating = (response) => {
    response.writeHead(200, head());
    response.write(words(1, 1));
    let beats = 0;
    const beat = setInterval(() => {
      beats += 1;
      if (beats < 5) response.write(": still here\n");
      else if (beats === 5) response.write(words(2, 2));
      else clearInterval(beat);
    }, 100);
  };
  script = [beating, streamed(event(3, "[DONE]"))];
  const reasons = [];
  const onStatus = ({ state, reason }) => state === "reconnecting" && reasons.push(reason);
  const found = await read(asking({ idleTimeout: 400, onStatus }));
  assert.deepEqual([found.error, found.ids], [null, [1, 2, 3]]);
  assert.deepEqual(reasons, ["not a byte for 400 ms"]);
});

test("a server that does not answer the one who comes back is given up for another attempt", async () => {
  script = [streamed(words(1, 1), { then: "break" }), () => {}, streamed(event(2, "[DONE]"))];
  assert.deepEqual((await read(asking({ idleTimeout: 50 }))).ids, [1, 2]);
});

test("a reader who takes his time is no silence of the server", async () => {
  script = [streamed(words(1, 3) + event(4, "[DONE]"))];
  const found = await read(asking({ idleTimeout: 60 }), () => new Promise((resolve) => setTimeout(resolve, 90)));
  assert.deepEqual([found.error, found.ids, asked.length], [null, [1, 2, 3, 4], 1]);
});

test("a connection from before the network's coming back is not trusted, if it can be replaced", async () => {
  const online = new EventTarget();
  script = [streamed(words(1, 2), { then: "hold" }), streamed(event(3, "[DONE]"))];
  const found = await read(asking({ online }), ({ id }) => id === 2 && online.dispatchEvent(new Event("online")));
  assert.deepEqual([found.error, found.ids], [null, [1, 2, 3]]);

  let rest;
  script = [
    async (response) => {
      await streamed(words(1, 2), { headers: { "X-Resume": "unavailable" }, then: "hold" })(response);
      rest = () => response.end(event(3, "[DONE]"));
    },
  ];
  const plain = await read(asking({ online }), async ({ data }) => {
    if (data !== '{"n":2}') return;
    online.dispatchEvent(new Event("online"));
    await until(() => rest);
    rest();
  });
  assert.deepEqual([plain.error, plain.events.length], [null, 3]);
});

test("a connection that is dropped on purpose is gone back to", async () => {
  script = [streamed(words(1, 2), { then: "hold" }), streamed(event(3, "[DONE]"))];
  const stream = asking();
  const found = await read(stream, ({ id }) => id === 2 && stream.drop());
  assert.deepEqual([found.error, found.ids], [null, [1, 2, 3]]);
});

// -- what is not to be had ---------------------------------------------------------------------------

for (const [status, code, available, kept] of [
  [400, "bad_cursor", null, true],
  [404, "not_found", null, false],
  [410, "expired", null, false],
  [410, "trimmed", { first: 40, last: 90 }, true],
]) {
  test(`${status} ${code} ends it, and the error says what the server said`, async () => {
    const error = { message: `It is ${code}.`, code, ...(status === 410 && { available }) };
    script = [streamed(words(1, 1), { then: "break" }), refused(status, error)];
    const storage = new MemoryPlace();
    const found = await read(asking({ key: "k", storage }));
    assert.ok(found.error instanceof StreamError);
    const said = [found.error.kind, found.error.status, found.error.code, found.error.available];
    assert.deepEqual(said, ["gone", status, code, available]);
    assert.match(found.error.message, new RegExp(`${status}: It is ${code}.`));
    assert.equal(found.final, "failed");
    assert.equal(storage.kept.has("k"), kept);
  });
}

for (const [what, headers] of [
  ["says so", { "X-Resume": "unavailable" }],
  ["knows nothing of it", { "X-Stream-Id": [], "X-Resume-Token": [] }],
]) {
  test(`a stream that is not resumable, because the server ${what}, is read as it is`, async () => {
    const text = 'data: {"n": 1}\n\ndata: {"n": 2}\n\n';
    const storage = new MemoryPlace();
    script = [streamed(`${text}data: [DONE]\n\n`, { headers })];
    const whole = await read(asking({ key: "k", storage }));
    assert.deepEqual([whole.error, whole.ids, whole.final], [null, [null, null, null], "done"]);
    script = [streamed(text, { headers, then: "break" })];
    const broken = await read(asking({ key: "k", storage }));
    assert.deepEqual([broken.events.length, broken.error.kind, broken.final], [2, "broken", "failed"]);
    assert.equal(storage.kept.size, 0);
  });
}

test("a request that is refused says why", async () => {
  script = [refused(400, { message: "No such model.", code: "model_not_found" })];
  const { error } = await read(asking());
  assert.deepEqual([error.kind, error.status, error.code], ["refused", 400, "model_not_found"]);
  assert.match(error.message, /No such model/);
});

test("an answer that is no stream is refused", async () => {
  script = [(response) => response.writeHead(200, { "Content-Type": "application/json" }).end("{}")];
  assert.equal((await read(asking())).error.kind, "not_a_stream");
});

test("a request that is not answered is not repeated: it might be done twice", async () => {
  script = [hangUp];
  assert.equal((await read(asking())).error.kind, "unreachable");
  assert.equal(asked.length, 1);
});

for (const [form, text, code] of [
  ["the gateway's", event(2, FAILED), "eof"],
  ["an engine's", 'id: 2\ndata: {"object": "error", "message": "Out of memory", "code": 500}\n\n', 500],
  ["a named one", 'id: 2\nevent: error\ndata: {"message": "It broke"}\n\n', null],
  ["a bare one", "id: 2\nevent: error\ndata: It broke\n\n", null],
]) {
  test(`an error event, ${form}, is given and then thrown`, async () => {
    script = [streamed(words(1, 1) + text, { then: "hold" })];
    const found = await read(asking());
    assert.deepEqual([found.ids, found.error.kind, found.error.code], [[1, 2], "failed", code]);
    assert.equal(found.final, "failed");
  });
}

// -- across a reload ---------------------------------------------------------------------------------

test("after a reload the stream goes on where it was", async () => {
  const storage = new MemoryPlace();
  script = [streamed(words(1, 3), { then: "hold" })];
  const first = asking({ key: "k", storage });
  for await (const { id } of first) if (id === 3) break;
  assert.equal(first.status.state, "closed");
  const rest = streamed(words(4, 4) + event(5, "[DONE]"), { headers: { "X-Last-Event-Id": "4" } });
  script = [rest];
  const second = ResumableStream.restore({ key: "k", storage, headers: { Authorization: "k" }, retry: QUICK });
  const found = await read(second);
  assert.deepEqual([found.error, found.ids], [null, [4, 5]]);
  assert.deepEqual(
    found.events.map(({ replayed }) => replayed),
    [true, false],
  );
  const { method, url, headers } = asked[1];
  assert.deepEqual([method, url, headers["last-event-id"]], ["GET", `/v1/streams/${ID}`, "3"]);
  assert.deepEqual([headers["x-resume-token"], headers.authorization], ["token-1", "k"]);
});

test("after a reload all of it can be had once more, the end included", async () => {
  const storage = new MemoryPlace();
  script = [streamed(words(1, 2) + event(3, "[DONE]"))];
  await read(asking({ key: "k", storage }));
  assert.equal(ResumableStream.restore({ key: "k", storage }), null);
  assert.equal(ResumableStream.restore({ key: "k", storage, from: 3 }), null);
  script = [streamed(words(1, 2) + event(3, "[DONE]"), { headers: { "X-Last-Event-Id": "3" } })];
  const found = await read(ResumableStream.restore({ key: "k", storage, from: 0 }));
  assert.deepEqual([found.ids, found.events.every(({ replayed }) => replayed)], [[1, 2, 3], true]);
  assert.equal(asked[1].headers["last-event-id"], "0");
});

test("an event counts as read when its reader has done with it", async () => {
  const storage = new MemoryPlace();
  script = [streamed(words(1, 2) + event(3, "[DONE]"))];
  const kept = [];
  await read(asking({ key: "k", storage }), () => kept.push(JSON.parse(storage.getItem("k")).last));
  assert.deepEqual([...kept, JSON.parse(storage.getItem("k")).last], [0, 1, 2, 3]);
});

test("where nothing is kept, or nonsense is, there is nothing to restore", () => {
  const storage = new MemoryPlace();
  assert.equal(ResumableStream.restore({ key: "k", storage }), null);
  for (const nonsense of ["", "{", "[]", "null", '{"id": "x"}', `{"url": "${url}", "id": "x", "token": 3, "last": 1}`]) {
    storage.setItem("k", nonsense);
    assert.equal(ResumableStream.restore({ key: "k", storage }), null);
  }
  ResumableStream.forget({ key: "k", storage });
  assert.equal(storage.kept.size, 0);
});

test("a storage that is not to be had, or full, ends no stream", async () => {
  const full = () => {
    throw new Error("QuotaExceededError");
  };
  script = [streamed(words(1, 2) + event(3, "[DONE]"))];
  const found = await read(asking({ key: "k", storage: { getItem: full, setItem: full, removeItem: full } }));
  assert.deepEqual([found.error, found.ids], [null, [1, 2, 3]]);
  script = [streamed(event(1, "[DONE]"))];
  assert.equal((await read(asking({ key: "k" }))).error, null); // Node has no sessionStorage
});

for (const [state, final] of [
  ["finished", "done"],
  ["abandoned", "failed"],
]) {
  test(`one who comes back when all was read learns that the stream is ${state}`, async () => {
    script = [
      streamed(words(1, 2), { then: "break" }),
      (response) => response.writeHead(204).end(),
      (response) => response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify({ state })),
    ];
    const found = await read(asking());
    assert.deepEqual([found.ids, found.final], [[1, 2], final]);
    assert.equal(found.error?.code, final === "failed" ? state : undefined);
    assert.equal(asked[2].url, `/v1/streams/${ID}/status`);
    assert.equal(asked[2].headers["x-resume-token"], "token-1");
  });
}

// -- ended by the reader -----------------------------------------------------------------------------

test("stop ends the generation and the reading, quietly", async () => {
  const standing = { stream_id: ID, state: "stopped" };
  script = [
    streamed(words(1, 2), { then: "hold" }),
    (response) => response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(standing)),
  ];
  const stream = asking({ headers: { Authorization: "k" } });
  let stopped;
  const found = await read(stream, ({ id }) => {
    if (id === 2) stopped = stream.stop();
  });
  assert.deepEqual([found.error, found.ids, found.final], [null, [1, 2], "stopped"]);
  assert.deepEqual(await stopped, standing);
  const { method, url, headers } = asked[1];
  assert.deepEqual([method, url], ["DELETE", `/v1/streams/${ID}`]);
  assert.deepEqual([headers["x-resume-token"], headers.authorization], ["token-1", "k"]);
  assert.equal(await stream.stop(), null);
});

test("stop works while the connection is away", async () => {
  script = [
    streamed(words(1, 1), { then: "break" }),
    (response) => response.writeHead(200, { "Content-Type": "application/json" }).end('{"state": "stopped"}'),
  ];
  const retry = { base: 3_600_000, cap: 3_600_000, total: 7_200_000 };
  const stream = asking({ retry, random: () => 1 });
  const reading = read(stream);
  await until(() => stream.status.state === "reconnecting");
  assert.equal((await stream.stop()).state, "stopped");
  assert.deepEqual([(await reading).error, stream.status.state], [null, "stopped"]);
});

test("a server that does not stop is told of", async () => {
  script = [streamed(words(1, 1), { then: "hold" }), refused(503, { code: "resume_unavailable" })];
  const stream = asking();
  let stopped;
  const found = await read(stream, () => {
    stopped = stream.stop();
    stopped.catch(() => {});
  });
  assert.equal(found.error, null);
  await assert.rejects(stopped, { kind: "refused", status: 503, code: "resume_unavailable" });
});

test("what is gone already needs no stop", async () => {
  script = [streamed(words(1, 1), { then: "hold" }), refused(404, {})];
  const stream = asking();
  let stopped;
  await read(stream, () => void (stopped = stream.stop()));
  assert.equal(await stopped, null);
});

for (const [how, leave] of [
  ["close()", (stream) => stream.close()],
  ["its signal", (_, controller) => controller.abort()],
]) {
  test(`${how} only disconnects, and the server sees it`, async () => {
    let gone = false;
    const held = async (response) => {
      response.on("close", () => void (gone = true));
      await streamed(words(1, 2), { then: "hold" })(response);
    };
    script = [held];
    const controller = new AbortController();
    const storage = new MemoryPlace();
    const stream = asking({ signal: controller.signal, key: "k", storage });
    const reading = read(stream);
    await until(() => stream.lastEventId === 2);
    leave(stream, controller);
    const found = await reading;
    assert.deepEqual([found.error, found.ids, found.final], [null, [1, 2], "closed"]);
    await until(() => gone);
    assert.equal(asked.length, 1);
    assert.equal(ResumableStream.restore({ key: "k", storage }).lastEventId, 2);
  });
}

test("close ends a request that is not answered yet, and a wait", async () => {
  script = [() => {}];
  const waiting = asking();
  const reading = read(waiting);
  await until(() => asked.length === 1);
  waiting.close();
  assert.deepEqual([(await reading).error, waiting.status.state], [null, "closed"]);

  script = [streamed(words(1, 1), { then: "break" })];
  const away = asking({ retry: { base: 3_600_000, cap: 3_600_000, total: 7_200_000 }, random: () => 1 });
  const other = read(away);
  await until(() => away.status.state === "reconnecting");
  away.close();
  assert.deepEqual([(await other).error, away.status.state], [null, "closed"]);
});

test("a loop that is left closes the connection", async () => {
  let gone = false;
  script = [
    async (response) => {
      response.on("close", () => void (gone = true));
      await streamed(words(1, 2), { then: "hold" })(response);
    },
  ];
  const stream = asking();
  for await (const { id } of stream) if (id === 1) break;
  await until(() => gone);
  assert.equal(stream.status.state, "closed");
});

test("a stream whose signal has been given already sends nothing", async () => {
  const stream = asking({ signal: AbortSignal.abort() });
  assert.deepEqual([(await read(stream)).error, asked.length, stream.status.state], [null, 0, "closed"]);
});

// -- how it ended ------------------------------------------------------------------------------------

for (const [last, final, leave] of [
  ["[DONE]", "done", "break"],
  ["[DONE]", "done", "close"],
  [FAILED, "failed", "break"],
  [FAILED, "failed", "close"],
]) {
  test(`who leaves (${leave}) at the last event, ${JSON.stringify(last)}, is told how it ended: ${final}`, async () => {
    script = [streamed(words(1, 1) + event(2, last), { then: "hold" })];
    const statuses = [];
    const storage = new MemoryPlace();
    const stream = asking({ key: "k", storage, onStatus: (status) => statuses.push(status) });
    for await (const { id } of stream) {
      if (id !== 2) continue;
      if (leave === "break") break;
      stream.close();
    }
    assert.deepEqual(
      statuses.map(({ state }) => state),
      ["connecting", "live", final],
    );
    assert.deepEqual([stream.status.state, stream.status.error?.code], [final, final === "failed" ? "eof" : undefined]);
    assert.equal(ResumableStream.restore({ key: "k", storage }), null);
  });
}

for (const [how, leave] of [
  ["close()", (stream) => stream.close()],
  ["its signal", (_, controller) => controller.abort()],
]) {
  test(`${how} while a stop is under way does not make it less of a stop`, async () => {
    let answer;
    script = [
      streamed(words(1, 1), { then: "hold" }),
      (response) => {
        answer = () => response.writeHead(200, { "Content-Type": "application/json" }).end('{"state": "stopped"}');
      },
    ];
    const controller = new AbortController();
    const stream = asking({ signal: controller.signal });
    let stopped;
    const found = await read(stream, () => {
      stopped = stream.stop();
      leave(stream, controller);
    });
    assert.deepEqual([found.error, found.final], [null, "stopped"]);
    await until(() => answer);
    answer();
    assert.equal((await stopped).state, "stopped");
    assert.equal(stream.status.state, "stopped");
  });
}

// -- a callback that throws --------------------------------------------------------------------------

class Slip extends Error {}

const slippingAt = (state, time = 1) => (status) => {
  if (status.state === state) time -= 1;
  if (status.state === state && time === 0) throw new Slip(state);
};

for (const [state, time] of [
  ["connecting", 1],
  ["live", 1],
  ["reconnecting", 1],
  ["replaying", 1],
  ["live", 2],
  ["done", 1],
]) {
  test(`what onStatus throws at ${state} number ${time} comes out of the loop, and the connection is closed`, async () => {
    let open = 0;
    const counted = (answer) => async (response) => {
      open += 1;
      response.on("close", () => void (open -= 1));
      await answer(response);
    };
    const all = [
      counted(streamed(words(1, 1), { then: "break" })),
      counted(streamed(words(2, 3) + event(4, "[DONE]"), { then: "hold", headers: { "X-Last-Event-Id": "3" } })),
    ];
    script = all.slice(0, { connecting: 0, reconnecting: 1 }[state] ?? (state === "live" && time === 1 ? 1 : 2));
    const expected = script.length;
    const found = await read(asking({ onStatus: slippingAt(state, time) }));
    assert.ok(found.error instanceof Slip, `${found.error}`);
    assert.equal(found.error.message, state);
    assert.equal(found.final, state === "done" ? "done" : "closed");
    assert.equal(asked.length, expected);
    await until(() => open === 0);
  });
}

test("what onStatus throws on and on does not hide what it threw first", async (t) => {
  const heard = t.mock.method(console, "error", () => {});
  script = [streamed(words(1, 1), { then: "hold" })];
  const onStatus = ({ state }) => {
    if (state !== "connecting") throw new Slip(state);
  };
  assert.equal((await read(asking({ onStatus }))).error.message, "live");
  assert.deepEqual(
    heard.mock.calls.map(({ arguments: [error] }) => error.message),
    ["closed"],
  );
});

test("what onStatus throws of a failure does not hide the failure", async (t) => {
  const heard = t.mock.method(console, "error", () => {});
  script = [streamed(words(1, 1) + event(2, FAILED))];
  const found = await read(asking({ onStatus: slippingAt("failed") }));
  assert.deepEqual([found.error.kind, found.error.code, found.final], ["failed", "eof", "failed"]);
  assert.ok(heard.mock.calls[0].arguments[0] instanceof Slip);
});

test("what onStatus throws after close() is not lost either", async () => {
  script = [streamed(words(1, 1), { then: "hold" })];
  const stream = asking({
    onStatus: ({ state }) => {
      if (state !== "live") return;
      stream.close();
      throw new Slip(state);
    },
  });
  const found = await read(stream);
  assert.ok(found.error instanceof Slip);
  assert.equal(found.final, "closed");
});

// -- answers that say no, or nothing -----------------------------------------------------------------

const SILENCE = 400; // longer than any answer of this server takes on a busy machine

const answered = (value, status = 200) => (response) =>
  response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(value));
const nothingNew = (response) => response.writeHead(204).end();
const silent = () => {};
const hanging = (status) => (response) => {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.write("{");
};
const kept = (last = 2) => {
  const storage = new MemoryPlace();
  storage.setItem("k", JSON.stringify({ url, id: ID, token: "token-1", last, ended: false }));
  return storage;
};
const restored = (more = {}) => ResumableStream.restore({ key: "k", storage: kept(), retry: QUICK, ...more });

for (const [what, trouble, more] of [
  ["is refused for now", refused(503, { code: "resume_unavailable" }), {}],
  ["breaks", hangUp, {}],
  ["is answered with a page of HTML", (response) => response.writeHead(200).end("<p>Please log in"), {}],
  ["is not answered", silent, { idleTimeout: SILENCE }],
  ["is not answered to its end", hanging(200), { idleTimeout: SILENCE }],
]) {
  test(`if the question how a stream ended ${what}, it is asked again`, async () => {
    script = [nothingNew, trouble, nothingNew, answered({ state: "finished" })];
    const storage = kept();
    const found = await read(restored({ storage, ...more }));
    assert.deepEqual([found.error, found.final], [null, "done"]);
    assert.equal(ResumableStream.restore({ key: "k", storage }), null);
  });
}

for (const [how, leave] of [
  ["close()", (stream) => stream.close()],
  ["its signal", (_, controller) => controller.abort()],
  ["stop()", (stream) => stream.stop()],
]) {
  test(`${how} ends the question how a stream ended`, async () => {
    let gone = false;
    script = [nothingNew, (response) => response.on("close", () => void (gone = true))];
    const controller = new AbortController();
    const stream = restored({ signal: controller.signal });
    const reading = read(stream);
    await until(() => asked.length === 2);
    if (how === "stop()") script.push(answered({ state: "finished" }));
    await leave(stream, controller);
    assert.deepEqual([(await reading).error, stream.status.state], [null, how === "stop()" ? "stopped" : "closed"]);
    await until(() => gone);
  });
}

for (const [status, kind] of [
  [400, "gone"],
  [401, "refused"],
  [403, "refused"],
  [404, "gone"],
  [410, "gone"],
]) {
  test(`${status} to one who comes back, or asks where the stream stands, is called ${kind}`, async () => {
    script = [streamed(words(1, 1), { then: "break" }), refused(status, { code: "c" }), refused(status, { code: "c" })];
    const stream = asking();
    const { error } = await read(stream);
    assert.deepEqual([error.kind, error.status, error.code], [kind, status, "c"]);
    await assert.rejects(stream.standing(), { name: "StreamError", kind, status, code: "c" });
  });
}

for (const [what, answer, expected] of [
  ["is refused for now", refused(503, {}, { "Retry-After": "7" }), { kind: "refused", status: 503, retryAfter: 7000 }],
  ["is not answered", hangUp, { kind: "unreachable", status: null }],
  ["meets silence", silent, { kind: "unreachable", status: null }],
  ["is answered with nonsense", answered("?"), { kind: "refused", status: 200 }],
]) {
  test(`standing() and stop() reject with a StreamError when the question ${what}`, async () => {
    for (const ask of [(stream) => stream.standing(), (stream) => stream.stop()]) {
      script = [answer];
      await assert.rejects(ask(restored({ idleTimeout: SILENCE })), { name: "StreamError", ...expected });
    }
  });
}

for (const status of [404, 503])
  test(`silence in the midst of a refusal (${status}) is a break like any other`, async () => {
    script = [streamed(words(1, 1), { then: "break" }), hanging(status), streamed(event(2, "[DONE]"))];
    const storage = new MemoryPlace();
    const found = await read(asking({ key: "k", storage, idleTimeout: SILENCE }));
    assert.deepEqual([found.error, found.ids], [null, [1, 2]]);
    assert.equal(JSON.parse(storage.getItem("k")).last, 2);
  });

test("silence in the midst of the first refusal ends it; the first answer itself may take its time", async () => {
  script = [hanging(400)];
  const { error } = await read(asking({ idleTimeout: 50 }));
  assert.deepEqual([error.kind, error.status], ["refused", 400]);

  let answer;
  script = [(response) => void (answer = () => streamed(event(1, "[DONE]"))(response))];
  const reading = read(asking({ idleTimeout: SILENCE }));
  await until(() => answer);
  await new Promise((resolve) => setTimeout(resolve, SILENCE * 1.5));
  await answer();
  assert.deepEqual([(await reading).error, asked.length], [null, 2]);
});

// -- redirects ---------------------------------------------------------------------------------------

const elsewhere = async (t, answer) => {
  const came = [];
  const other = createServer((request, response) => {
    came.push({ method: request.method, url: request.url, headers: request.headers });
    return answer(response);
  });
  other.listen(0, "127.0.0.1");
  await once(other, "listening");
  t.after(() => {
    other.closeAllConnections();
    other.close();
  });
  return { came, origin: `http://127.0.0.1:${other.address().port}` };
};

for (const status of [301, 302, 303, 307, 308])
  test(`a redirect (${status}) is not followed with the token`, async (t) => {
    const { came, origin } = await elsewhere(t, streamed(event(2, "[DONE]")));
    const away = (response) => response.writeHead(status, { Location: `${origin}/x` }).end();
    script = [streamed(words(1, 1), { then: "break" }), away, away, away];
    const storage = new MemoryPlace();
    const stream = asking({ key: "k", storage });
    const { error, final } = await read(stream);
    assert.deepEqual([error.kind, error.status, final], ["refused", status, "failed"]);
    assert.match(error.message, /redirect/);
    await assert.rejects(stream.standing(), { kind: "refused", status });
    await assert.rejects(stream.stop(), { kind: "refused", status });
    assert.deepEqual(came, []);
    assert.equal(storage.kept.has("k"), true);
  });

test("a browser's redirect, which has no status, is none that is followed either", async () => {
  script = [streamed(words(1, 1), { then: "break" })];
  const opaque = Object.defineProperties(Response.error(), { type: { value: "opaqueredirect" } });
  const fetching = (address, request) => (request.method === "POST" ? fetch(address, request) : Promise.resolve(opaque));
  const { error } = await read(asking({ fetch: fetching }));
  assert.deepEqual([error.kind, error.status], ["refused", 0]);
  assert.match(error.message, /redirect/);
});

test("a question that was redirected is gone back to where it was answered", async (t) => {
  const answers = [streamed(words(1, 1), { then: "break" }), streamed(event(2, "[DONE]"))];
  const { came, origin } = await elsewhere(t, (response) => answers.shift()(response));
  script = [(response) => response.writeHead(307, { Location: `${origin}/gateway/v1/chat/completions` }).end()];
  const storage = new MemoryPlace();
  const found = await read(asking({ key: "k", storage }));
  assert.deepEqual([found.error, found.ids], [null, [1, 2]]);
  assert.deepEqual(
    came.map(({ method, url }) => [method, url]),
    [
      ["POST", "/gateway/v1/chat/completions"],
      ["GET", `/gateway/v1/streams/${ID}`],
    ],
  );
  assert.equal(JSON.parse(storage.getItem("k")).url, `${origin}/gateway/v1/chat/completions`);
});

// -- clocks ------------------------------------------------------------------------------------------

const LONGEST = 2 ** 31 - 1; // milliseconds; a longer timer fires at once

for (const [what, retry, headers, delay] of [
  ["the server asks for a month", { ...QUICK, total: Infinity }, { "Retry-After": "2592000" }, LONGEST],
  ["the server asks for ever", { ...QUICK, total: Infinity }, { "Retry-After": "9".repeat(400) }, LONGEST],
  ["the waits grow without end", { base: 1e12, cap: Infinity, total: Infinity }, {}, LONGEST],
  ["the waits are long, but there is an end", { base: 1e12, cap: Infinity, total: 1e12 }, {}, LONGEST],
]) {
  test(`a wait is as long as a timer can be, if ${what}`, async (t) => {
    const timers = t.mock.method(globalThis, "setTimeout");
    script = [streamed(words(1, 1), { then: "break" }), refused(503, {}, headers), streamed(event(2, "[DONE]"))];
    const online = new EventTarget();
    const delays = [];
    const onStatus = ({ state, ...status }) => {
      if (state !== "reconnecting") return;
      delays.push(status.delay);
      if (status.delay === delay) setImmediate(() => online.dispatchEvent(new Event("online")));
    };
    const found = await read(asking({ online, onStatus, retry, random: () => 1 }));
    assert.deepEqual([found.error, found.ids, delays.length, delays[1]], [null, [1, 2], 2, delay]);
    for (const { arguments: [, milliseconds = 0] } of timers.mock.calls) assert.ok(milliseconds <= LONGEST);
  });
}

for (const idleTimeout of [Infinity, NaN, -1, 0, 1e12])
  test(`an idleTimeout of ${idleTimeout} is none, or as long as a timer can be`, async () => {
    let rest;
    script = [
      async (response) => {
        await streamed(words(1, 1), { then: "hold" })(response);
        rest = () => response.end(event(2, "[DONE]"));
      },
    ];
    const reading = read(asking({ idleTimeout }));
    await until(() => rest);
    await new Promise((resolve) => setTimeout(resolve, 30)); // one that fires at once has done so by then
    rest();
    const found = await reading;
    assert.deepEqual([found.error, found.ids, asked.length], [null, [1, 2], 1]);
  });

test("a clock that is set meanwhile is no outage", async (t) => {
  const now = Date.now;
  let ahead = 0;
  t.mock.method(Date, "now", () => now() + ahead);
  const late = (answer) => (response) => {
    ahead += 3_600_000;
    return answer(response);
  };
  script = [
    streamed(words(1, 1), { then: "break" }),
    late(refused(503, {})),
    late(hangUp),
    streamed(event(2, "[DONE]")),
  ];
  const found = await read(asking());
  assert.deepEqual([found.error, found.ids], [null, [1, 2]]);
});

test("an outage is over with an answer, though that brings nothing; with a refusal it is not", async (t) => {
  const now = performance.now.bind(performance);
  let ahead = 0;
  t.mock.method(performance, "now", () => now() + ahead);
  const late = (answer) => (response) => {
    ahead += 200_000;
    return answer(response);
  };
  const retry = { ...QUICK, cap: 1e9, base: 1, total: 300_000 };
  const silent = () => late(streamed("", { then: "break" }));
  script = [streamed(words(1, 1), { then: "break" }), silent(), silent(), silent(), streamed(event(2, "[DONE]"))];
  const found = await read(asking({ retry, random: () => 0 }));
  assert.deepEqual([found.error, found.ids], [null, [1, 2]]);

  script = [streamed(words(1, 1), { then: "break" }), late(refused(503, {})), late(refused(503, {}))];
  assert.equal((await read(asking({ retry, random: () => 0 }))).error.kind, "gave_up");
});

test("silence costs reconnects and no text, however long it lasts", async (t) => {
  const now = performance.now.bind(performance);
  let ahead = 0;
  t.mock.method(performance, "now", () => now() + ahead);
  let connections = 0;
  const still = (response) => {
    ahead += 100_000;
    connections += 1;
    script = [still];
    return streamed(connections > 4 ? event(2, "[DONE]") : "", { then: "hold" })(response);
  };
  script = [streamed(words(1, 1), { then: "hold" }), still];
  const found = await read(asking({ idleTimeout: SILENCE / 4, retry: { ...QUICK, cap: 1e9, total: 300_000 } }));
  script = [];
  assert.deepEqual([found.error, found.ids], [null, [1, 2]]);
});

// -- what is kept ------------------------------------------------------------------------------------

const PLAIN = { "X-Resume": "unavailable" };

test("a new question under the same key leaves nothing of the one before, whatever becomes of it", async () => {
  for (const [second, then] of [
    [streamed('data: {"n": 1}\n\ndata: [DONE]\n\n', { headers: PLAIN }), "done"],
    [refused(400, {}), "failed"],
    [hangUp, "failed"],
  ]) {
    const storage = new MemoryPlace();
    script = [streamed(words(1, 1) + event(2, "[DONE]")), second];
    await read(asking({ key: "k", storage }));
    assert.equal((await read(asking({ key: "k", storage }))).final, then);
    assert.equal(ResumableStream.restore({ key: "k", storage, from: 0 }), null);
  }
});

test("a question that is not answered yet is not taken for the one before", async () => {
  const storage = kept();
  script = [silent];
  const stream = asking({ key: "k", storage });
  const reading = read(stream);
  await until(() => asked.length === 1);
  assert.equal(ResumableStream.restore({ key: "k", storage }), null);
  stream.close();
  await reading;
});

test("a stream whose key another one has taken, or that was forgotten, does not keep its position any more", async () => {
  const storage = new MemoryPlace();
  const position = () => JSON.parse(storage.getItem("k"));
  let rest;
  const two = "f".repeat(32);
  script = [
    async (response) => {
      await streamed(words(1, 1), { then: "hold" })(response);
      rest = () => response.end(words(2, 2) + event(3, "[DONE]"));
    },
    streamed(words(1, 2), { then: "hold", headers: { "X-Stream-Id": two } }),
  ];
  const first = read(asking({ key: "k", storage }));
  await until(() => storage.kept.size === 1 && position().last === 1);
  const stream = asking({ key: "k", storage });
  const second = read(stream);
  await until(() => position()?.last === 2);
  rest();
  assert.equal((await first).final, "done");
  assert.deepEqual([position().id, position().last], [two, 2]);
  stream.close();
  await second;

  script = [streamed(words(1, 2) + event(3, "[DONE]"))];
  await read(asking({ key: "k", storage }), ({ id }) => id === 2 && ResumableStream.forget({ key: "k", storage }));
  assert.equal(storage.kept.size, 0);
});

test("404 to a page that came back with another authorization costs it nothing", async () => {
  const storage = kept();
  script = [refused(404, { code: "not_found" }), refused(404, { code: "not_found" }), streamed(event(3, "[DONE]"))];
  const wrong = ResumableStream.restore({ key: "k", storage, headers: { Authorization: "typo" } });
  const { error } = await read(wrong);
  assert.deepEqual([error.kind, error.status], ["gone", 404]);
  await assert.rejects(wrong.stop(), { kind: "gone", status: 404 });
  const right = ResumableStream.restore({ key: "k", storage, headers: { Authorization: "right" } });
  assert.deepEqual((await read(right)).ids, [3]);
});

test("what is gone of a restored stream is forgotten, and what has taken its key is not", async () => {
  for (const taken of [false, true]) {
    const storage = kept();
    script = [
      (response) => {
        if (taken) storage.setItem("k", JSON.stringify({ url, id: "f".repeat(32), token: "t", last: 1, ended: false }));
        refused(410, { code: "expired", available: null })(response);
      },
    ];
    assert.equal((await read(restored({ storage }))).error.status, 410);
    assert.equal(storage.kept.has("k"), taken);
  }
});

test("an address or a number that makes no sense is nothing to restore", () => {
  const storage = new MemoryPlace();
  for (const nonsense of [{ url: "nowhere" }, { url: "http://" }, { url: "mailto:a@b" }, { last: -1 }, { last: 1.5 }]) {
    storage.setItem("k", JSON.stringify({ url, id: ID, token: "t", last: 1, ended: false, ...nonsense }));
    assert.equal(ResumableStream.restore({ key: "k", storage, from: 0 }), null, JSON.stringify(nonsense));
  }
});

// -- a reader who was overtaken ----------------------------------------------------------------------

const GAP = `data: ${JSON.stringify({ error: { message: "It is not kept.", code: "resume_gap" } })}\n\n`;

test("a reader who was overtaken learns what can still be had, and can have it", async () => {
  const available = { first: 40, last: 90 };
  const storage = new MemoryPlace();
  script = [streamed(words(1, 2) + GAP), refused(410, { code: "trimmed", available })];
  const found = await read(asking({ key: "k", storage }));
  assert.deepEqual([found.ids, found.error.kind, found.error.available], [[1, 2], "gone", available]);
  assert.equal(found.final, "failed");
  script = [streamed(words(40, 41) + event(42, "[DONE]"))];
  const rest = ResumableStream.restore({ key: "k", storage, from: available.first - 1, retry: QUICK });
  assert.deepEqual((await read(rest)).ids, [40, 41, 42]);
});

test("a gap that another process does not have is none", async () => {
  script = [streamed(words(1, 2) + GAP), streamed(words(3, 3) + GAP), streamed(event(4, "[DONE]"))];
  const found = await read(asking());
  assert.deepEqual([found.error, found.ids], [null, [1, 2, 3, 4]]);
});

test("a gap that is there again ends the reading, and not the stream", async () => {
  const storage = new MemoryPlace();
  script = [streamed(words(1, 2) + GAP), streamed(GAP)];
  const found = await read(asking({ key: "k", storage }));
  assert.deepEqual([found.ids, found.error.kind, found.error.code], [[1, 2], "gone", "resume_gap"]);
  assert.match(found.error.message, /not kept/);
  assert.equal(ResumableStream.restore({ key: "k", storage }).lastEventId, 2);
});

test("an error without a number ends a stream that has none", async () => {
  script = [streamed(`data: {"n": 1}\n\n${GAP}`, { headers: PLAIN, then: "hold" })];
  const found = await read(asking());
  assert.deepEqual([found.events.length, found.error.kind, found.error.code], [2, "failed", "resume_gap"]);
});
