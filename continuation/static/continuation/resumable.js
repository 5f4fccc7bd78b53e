/**
 * A streamed chat answer that outlives its connection: asked for with fetch, read as server-sent events, and gone back to
 * when the connection breaks, until its end. For browsers and for Node 20 or newer; depends on nothing.
 *
 *     import { ResumableStream } from "/static/continuation/resumable.js";
 *
 *     const stream = new ResumableStream({ url: "/v1/chat/completions", body: { model, messages }, key: "answer" });
 *     for await (const { id, json, replayed } of stream) show(json);   // each event once, in order, "[DONE]" last
 *
 * README.md beside this file tells the rest.
 */

/** What was read of one block of a stream of events.
 * @typedef {{ id: string | null, event: string, data: string }} Block */

/** One event. id: its number, null where the server gives none. json: what data holds, undefined where that is no JSON.
 * replayed: it was sent once before this connection was opened.
 * @typedef {{ id: number | null, event: string, data: string, json: any, replayed: boolean }} StreamEvent */

/** Milliseconds: before attempt n a random time below min(cap, base * 2 ** (n - 1)), on top of what the server asks for in
 * Retry-After; given up after so many attempts in which nothing came, or so long after the break without an answer.
 * @typedef {{ base: number, cap: number, attempts: number, total: number }} Retry */

/** @typedef {{ state: "connecting" } | { state: "live" } | { state: "done" } | { state: "stopped" } | { state: "closed" }
 *   | { state: "replaying", until: number }
 *   | { state: "reconnecting", attempt: number, delay: number, reason: string }
 *   | { state: "failed", error: StreamError }} Status */

/** @typedef {Pick<Storage, "getItem" | "setItem" | "removeItem">} Place */

/** What both ways to a stream take.
 * @typedef {object} Manner
 * @property {Record<string, string>} [headers] sent with each request, such as Authorization
 * @property {boolean} [checkpoints] have the server send a fresh token from time to time
 * @property {string} [key] where in `storage` the position is kept, so that `restore` finds it after a reload
 * @property {Place} [storage] sessionStorage, if not given
 * @property {AbortSignal} [signal] does what close() does
 * @property {(status: Status) => void} [onStatus]
 * @property {number} [idleTimeout] milliseconds without a byte after which the connection counts as broken; 0, Infinity, and
 *   if not given: never. It must be longer than the silence of an engine, or of the gateway's KEEPALIVE_SECONDS. The
 *   headers of the first answer are waited for as long as it takes
 * @property {Partial<Retry>} [retry]
 * @property {RequestCredentials} [credentials] as fetch's
 * @property {typeof globalThis.fetch} [fetch]
 * @property {EventTarget} [online] whose `online` event ends a wait early, and a connection from before; the window, if
 *   not given
 * @property {() => number} [random]
 */

/** @typedef {Manner & { url: string | URL, body: Record<string, unknown> }} Options */

/** from: the number of the event after which to go on; if not given, the last one that was read.
 * @typedef {Manner & { key: string, from?: number }} RestoreOptions */

/** url: of the chat endpoint.
 * @typedef {{ url: string, id: string, token: string, last: number, ended: boolean }} Position */

/** @typedef {{ stream_id: string, state: string, available: { first: number, last: number } | null, last_event_id: number,
 *   leg2_from: number | null, readers: number, started_at: string | null, ended_at: string | null,
 *   expires_in: number | null }} Standing */

/** @type {Retry} */
const RETRY = { base: 300, cap: 10_000, attempts: Infinity, total: 300_000 };
const LARGEST_EVENT = 2 ** 26; // characters
const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds; a longer one fires at once
/** @type {RequestInit} */
const STOP = { method: "DELETE", keepalive: true }; // also while the page is being left
const WORTH_ANOTHER_TRY = [408, 425, 429];
const GONE = [400, 404, 410];

/**
 * Why a stream has not been read to its end. kind:
 *   unreachable   the request was not answered
 *   refused       it was answered with an error, or the way back with a redirect: status (0 for a redirect in a browser),
 *                 code, retryAfter in milliseconds
 *   not_a_stream  it was answered with something else than a stream of events
 *   broken        the connection broke, and the stream is not resumable
 *   failed        the stream ended with an error event: code
 *   gone          the server does not give the rest: status, code, and in `available` what it still has
 *   gave_up       no connection within the limits of `retry`
 *   too_large     an event beyond all reason
 */
export class StreamError extends Error {
  /**
   * @param {"unreachable" | "refused" | "not_a_stream" | "broken" | "failed" | "gone" | "gave_up" | "too_large"} kind
   * @param {string} message
   * @param {{ status?: number, code?: string | number | null, cause?: unknown, retryAfter?: number,
   *   available?: { first: number, last: number } | null }} [more]
   */
  constructor(kind, message, { status, code, available, retryAfter, cause } = {}) {
    super(message, { cause });
    this.name = "StreamError";
    this.kind = kind;
    this.status = status ?? null;
    this.code = code ?? null;
    this.available = available ?? null;
    this.retryAfter = retryAfter ?? 0;
  }
}

/** Bytes of a stream of events, cut anywhere, to blocks. Lines end in LF, CR or CRLF and in nothing else. */
export class EventParser {
  #decoder = new TextDecoder(); // drops one leading BOM
  #line = "";
  #afterReturn = false;
  #size = 0;
  /** @type {string[]} */
  #data = [];
  #event = "";
  /** @type {string | null} */
  #id = null;

  /** The blocks that these bytes complete; those without data are left out.
   * @param {Uint8Array} bytes
   * @returns {Block[]} */
  push(bytes) {
    const text = this.#decoder.decode(bytes, { stream: true });
    if (!text) return [];
    const blocks = [];
    let start = this.#afterReturn && text[0] === "\n" ? 1 : 0;
    this.#afterReturn = text.endsWith("\r");
    const ends = /\r\n?|\n/g;
    ends.lastIndex = start;
    for (let end = ends.exec(text); end; end = ends.exec(text)) {
      const line = this.#line + text.slice(start, end.index);
      this.#line = "";
      start = ends.lastIndex;
      if (line) this.#field(line);
      else blocks.push(...this.#complete());
    }
    this.#line += text.slice(start);
    if (this.#line.length + this.#size > LARGEST_EVENT)
      throw new StreamError("too_large", `an event has more than ${LARGEST_EVENT} characters`);
    return blocks;
  }

  /** @param {string} line */
  #field(line) {
    this.#size += line.length;
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }

  /** @returns {Block[]} */
  #complete() {
    const block = { id: this.#id, event: this.#event || "message", data: this.#data.join("\n") };
    const whole = this.#data.length > 0;
    this.#data = [];
    this.#event = "";
    this.#id = null;
    this.#size = 0;
    return whole ? [block] : [];
  }
}

/** Milliseconds to wait before an attempt, the first being 1: full jitter.
 * @param {number} attempt
 * @param {Pick<Retry, "base" | "cap">} retry
 * @param {() => number} random */
export function backoff(attempt, { base, cap }, random = Math.random) {
  return random() * Math.min(cap, base * 2 ** Math.min(attempt - 1, 60));
}

/** Milliseconds that a Retry-After asks for, in either of its forms; 0 for none.
 * @param {string | null} value
 * @param {number} now */
export function retryAfter(value, now = Date.now()) {
  if (!value) return 0;
  const seconds = /^\s*\d+\s*$/.test(value) ? Number(value) * 1000 : Date.parse(value) - now;
  return Math.max(0, seconds || 0);
}

export class ResumableStream {
  /** The stream's id; empty before the answer, and where the stream is not resumable. */
  id = "";
  /** What proves that the stream is ours. */
  token = "";
  /** The number of the newest event that was read. */
  lastEventId = 0;
  /** @type {Status} */
  status = { state: "connecting" };

  #url;
  /** @type {Record<string, unknown> | null} */
  #body;
  #manner;
  /** @type {Retry} */
  #retry;
  #iterated = false;
  /** How the stream itself has ended; null: it has not yet, or nobody here knows of it.
   * @type {Status | null} */
  #end = null;
  /** @type {"stopped" | "closed" | null} */
  #leaving = null;
  #connection = new AbortController();
  #replayedUntil = 0;
  #attempts = 0; // since something has come
  #wasCutShort = false; // by the server, which said why, and since something has come
  #connectedAt = 0; // on performance's clock, which nobody sets
  #wake = () => {};

  /** Nothing is sent before the stream is iterated over.
   * @param {Options} options */
  constructor({ url, body, ...manner }) {
    this.#url = absolute(url);
    this.#body = body;
    this.#manner = manner;
    this.#retry = { ...RETRY, ...manner.retry };
  }

  /** The stream whose position was kept under the key, to be iterated over from there on, or from `from` on: 0 to have
   * all of it once more. null if none is kept, or nothing of it is to come.
   * @param {RestoreOptions} options
   * @returns {ResumableStream | null} */
  static restore({ from, ...manner }) {
    const position = positionIn(manner);
    if (!position || (position.ended && (from ?? position.last) >= position.last)) return null;
    const stream = new ResumableStream({ url: position.url, body: {}, ...manner });
    stream.#body = null;
    stream.id = position.id;
    stream.token = position.token;
    stream.lastEventId = from ?? position.last;
    return stream;
  }

  /** No position is kept under the key any more.
   * @param {{ key: string, storage?: Place }} manner */
  static forget({ key, storage }) {
    inStorage(storage, (place) => place.removeItem(key));
  }

  /** Whether the stream can be gone back to, which is known once it is live. */
  get resumable() {
    return this.id !== "";
  }

  /** Each event once and in order. Returns after [DONE], stop() and close(), throws a StreamError after an error event
   * and where the rest is not to be had. A loop that is left closes the connection.
   * @returns {AsyncGenerator<StreamEvent, void, void>} */
  async *[Symbol.asyncIterator]() {
    if (this.#iterated) throw new TypeError("a stream can be iterated over once");
    this.#iterated = true;
    const { signal, online = /** @type {EventTarget} */ (globalThis) } = this.#manner;
    const close = () => this.close();
    const back = () => this.resumable && this.drop(); // a connection from before may be dead, and nobody has said so
    signal?.addEventListener("abort", close);
    online.addEventListener?.("online", back); // Node's globals are no event target
    if (signal?.aborted) this.close();
    /** @type {unknown} */
    let trouble = null;
    try {
      if (!this.#leaving) yield* this.#events();
    } catch (error) {
      if (this.#leaving && error instanceof StreamError) return;
      trouble = error;
      throw error;
    } finally {
      signal?.removeEventListener("abort", close);
      online.removeEventListener?.("online", back);
      this.#connection.abort();
      this.#finish(trouble);
    }
  }

  /** End the generation, for all who read it. Rejects with a StreamError if the server could not be told; the reading has
   * ended all the same. A stream that is not resumable ends with its connection.
   * @returns {Promise<Standing | null>} where it stands then; null if there is nothing to stop any more */
  async stop() {
    if (this.#end) return null;
    this.#leave("stopped");
    if (!this.resumable) return null;
    try {
      const standing = await this.#standingBy("", STOP);
      this.#endAs({ state: "stopped" });
      return standing;
    } catch (error) {
      if (error instanceof StreamError && this.#isGone(error)) return null;
      throw error;
    }
  }

  /** Only disconnect: the generation goes on for a while, and `restore` finds it. */
  close() {
    if (!this.#end) this.#leave("closed");
  }

  /** As if the connection had broken now; a wait for the next attempt ends. */
  drop() {
    this.#connection.abort(new Error("the connection was dropped"));
    this.#wake();
  }

  /** Where the stream stands on the server. Rejects with a StreamError.
   * @returns {Promise<Standing>} */
  standing() {
    return this.#standingBy("/status");
  }

  // -- asking ------------------------------------------------------------------------------------

  async *#events() {
    let answer = this.#body ? await this.#ask(this.#body) : await this.#comeBack(null);
    while (answer) {
      const trouble = yield* this.#read(answer);
      if (this.#end || this.#leaving) return;
      if (!this.resumable) throw new StreamError("broken", told(trouble), { cause: trouble });
      answer = await this.#comeBack(trouble);
    }
    if (this.#end?.state === "failed") throw this.#end.error;
  }

  /** @param {Record<string, unknown>} body */
  async #ask(body) {
    const { key, storage } = this.#manner;
    if (key) ResumableStream.forget({ key, storage }); // what was asked before is not the answer to this
    this.#tell({ state: "connecting" });
    const headers = this.#headers({ "Content-Type": "application/json", "X-Resumable": "1" });
    const sent = { method: "POST", headers, body: JSON.stringify({ ...body, stream: true }) };
    const answer = await this.#fetch(this.#url, sent).catch((cause) => {
      throw new StreamError("unreachable", `the request was not answered: ${told(cause)}`, { cause });
    });
    if (!answer.ok) throw refusal(answer, await this.#timely(answer.text()).catch(() => ""), "refused");
    if (!isStream(answer))
      throw new StreamError("not_a_stream", `the answer is ${kindOf(answer)}`, { status: answer.status });
    if (answer.redirected) this.#url = answer.url; // whose token it is
    if (answer.headers.get("X-Resume") !== "unavailable") this.id = answer.headers.get("X-Stream-Id") ?? "";
    this.#connected(answer);
    return answer;
  }

  /** An open answer that has what comes after the newest event that was read; null if nothing does.
   * @param {unknown} trouble null: there was no connection yet
   * @returns {Promise<Response | null>} */
  async #comeBack(trouble) {
    const brokenAt = performance.now();
    // A connection that stayed is no attempt that failed, though nothing may have come.
    if (brokenAt - this.#connectedAt > this.#retry.cap) this.#attempts = 0;
    let reason = trouble;
    let asked = 0;
    for (;;) {
      if (reason === null) this.#tell({ state: "connecting" });
      else await this.#wait(reason, asked, brokenAt);
      if (this.#leaving) return null;
      asked = 0;
      /** @type {Response | null} */
      let answer;
      try {
        answer = await this.#resume();
      } catch (error) {
        if (this.#leaving) return null;
        if (error instanceof StreamError) {
          if (this.#isGone(error) && !error.available) this.#forget();
          if (isForGood(error)) throw error;
          asked = error.retryAfter;
        }
        reason = error;
        continue;
      }
      if (answer) this.#connected(answer);
      return answer;
    }
  }

  /** Whether there is no such stream any more. 404 says so only to one who was answered before: to others it may mean that
   * theirs is another Authorization than that of who asked.
   * @param {StreamError} error */
  #isGone({ status }) {
    return status === 410 || (status === 404 && this.#connectedAt > 0);
  }

  /** @param {unknown} reason
   * @param {number} asked milliseconds that the server wants to be left alone
   * @param {number} brokenAt */
  async #wait(reason, asked, brokenAt) {
    const { attempts, total } = this.#retry;
    const left = brokenAt + total - performance.now();
    this.#attempts += 1;
    if (this.#attempts > attempts || left <= 0 || asked > left)
      throw new StreamError("gave_up", `not tried any longer: ${told(reason)}`, { cause: reason });
    // On top of what the server asks for, not instead: it asks all its clients for the same, and they broke off together.
    const drawn = backoff(this.#attempts, this.#retry, this.#manner.random);
    const delay = Math.min(LONGEST_TIMER, left, asked + drawn);
    this.#tell({ state: "reconnecting", attempt: this.#attempts, delay, reason: told(reason) });
    await this.#pause(delay);
  }

  /** As #comeBack, in one attempt.
   * @returns {Promise<Response | null>} */
  async #resume() {
    this.#connection.abort();
    this.#connection = new AbortController();
    const headers = { Accept: "text/event-stream", "Last-Event-ID": String(this.lastEventId) };
    const answer = await this.#timely(this.#request("", headers));
    if (answer.status === 204) {
      await this.#askHowItEnded();
      return null;
    }
    if (answer.status === 200 && isStream(answer)) return answer;
    throw refusal(answer, await this.#timely(answer.text()));
  }

  /** The stream has ended, and its last event was read, but not here. */
  async #askHowItEnded() {
    const { state } = await this.#standingBy("/status", {}, this.#connection);
    if (state === "finished") this.#endAs({ state: "done" });
    else this.#endAs(failed(new StreamError("failed", `the stream has ended: ${state}`, { code: state })));
  }

  /** @param {Response} answer */
  #connected(answer) {
    this.#connectedAt = performance.now();
    this.token = answer.headers.get("X-Resume-Token") ?? this.token;
    this.#replayedUntil = this.#body ? 0 : Number(answer.headers.get("X-Last-Event-Id") ?? 0);
    this.#keep(this.#body !== null);
    this.#body = null;
    const behind = this.#replayedUntil > this.lastEventId;
    this.#tell(behind ? { state: "replaying", until: this.#replayedUntil } : { state: "live" });
  }

  /** What a request answers that is answered with the stream's standing. With a controller of its own it goes on when the
   * reading ends.
   * @param {string} path
   * @param {RequestInit} [more]
   * @param {AbortController} [controller]
   * @returns {Promise<Standing>} */
  async #standingBy(path, more = {}, controller = new AbortController()) {
    const request = { ...more, signal: controller.signal };
    try {
      const answer = await this.#timely(this.#request(path, {}, request), controller);
      const text = await this.#timely(answer.text(), controller);
      const standing = parsed(text);
      if (answer.ok && typeof standing?.state === "string") return standing;
      throw refusal(answer, text);
    } catch (cause) {
      if (cause instanceof StreamError) throw cause;
      throw new StreamError("unreachable", `the request was not answered: ${told(cause)}`, { cause });
    }
  }

  /** About the stream as it is. A redirect is not followed: the token is for this server alone.
   * @param {string} path
   * @param {Record<string, string>} [own] headers
   * @param {RequestInit} [more] */
  #request(path, own = {}, more = {}) {
    const headers = this.#headers({ "X-Resume-Token": this.token, ...own });
    const url = new URL(`../streams/${encodeURIComponent(this.id)}${path}`, this.#url);
    return this.#fetch(url.href, { cache: "no-store", redirect: "manual", ...more, headers });
  }

  /** @param {Record<string, string>} more */
  #headers(more) {
    const { headers, checkpoints } = this.#manner;
    return { ...headers, ...(checkpoints && { "X-Resume-Events": "1" }), ...more };
  }

  /** @param {string} url
   * @param {RequestInit} request */
  #fetch(url, request) {
    const { fetch = globalThis.fetch, credentials } = this.#manner; // called without `this`, as browsers want it
    return fetch(url, { signal: this.#connection.signal, ...(credentials && { credentials }), ...request });
  }

  // -- reading -----------------------------------------------------------------------------------

  /** @param {Response} answer
   * @returns {AsyncGenerator<StreamEvent, unknown, void>} what broke the connection, if it was not the end */
  async *#read(answer) {
    const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
    const parser = new EventParser();
    try {
      for (;;) {
        /** @type {Uint8Array | undefined} */
        let bytes;
        try {
          bytes = (await this.#timely(reader.read())).value;
        } catch (trouble) {
          return trouble;
        }
        if (!bytes) return new Error("the connection ended before the answer did");
        for (const block of parser.push(bytes)) {
          const number = this.#numberOf(block);
          if (number !== null && number > this.lastEventId + 1)
            return new Error(`event ${number} came after event ${this.lastEventId}`);
          const event = this.#take(block, number);
          const complaint = event && this.resumable && number === null ? failureIn(event) : null;
          if (complaint) return this.#cutShort(complaint);
          if (event) yield* this.#deliver(event);
          if (this.#end || this.#leaving) return null;
        }
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  /** An error without a number stands in no log: it ends this connection, and not the stream. Who comes back is told what
   * can still be had; one who is told the same again does not ask a third time.
   * @param {StreamError} complaint */
  #cutShort({ message, code }) {
    if (this.#wasCutShort) throw new StreamError("gone", message, { code });
    this.#wasCutShort = true;
    return new Error(message);
  }

  /** @param {Block} block */
  #numberOf({ id }) {
    return this.resumable && id !== null && /^\d+$/.test(id) ? Number(id) : null;
  }

  /** null: nothing for the reader, because it had it, or because it is for this class.
   * @param {Block} block
   * @param {number | null} number
   * @returns {StreamEvent | null} */
  #take({ event, data }, number) {
    const json = parsed(data);
    if (event === "resume_token") {
      if (typeof json?.token === "string") this.token = json.token;
      this.#keep();
      return null;
    }
    if (number !== null) {
      if (number <= this.lastEventId) return null;
      this.lastEventId = number;
    }
    return { id: number, event, data, json, replayed: number !== null && number <= this.#replayedUntil };
  }

  /** @param {StreamEvent} event */
  async *#deliver(event) {
    this.#attempts = 0;
    this.#wasCutShort = false;
    const end = endIn(event);
    try {
      yield event;
    } finally {
      if (end) this.#endAs(end);
      else this.#keep(); // only now: the reader has done with the event
    }
    if (end?.state === "failed") throw end.error;
    if (end || this.#leaving) return;
    if (this.status.state === "replaying" && this.lastEventId >= this.#replayedUntil) this.#tell({ state: "live" });
  }

  // -- ends and waits ----------------------------------------------------------------------------

  /** @param {Status} how */
  #endAs(how) {
    this.#end ??= how;
    this.#keep();
  }

  /** The last state, for one who has left too. What onStatus throws of it must not hide what was thrown before.
   * @param {unknown} trouble */
  #finish(trouble) {
    this.#leaving ??= "closed";
    try {
      this.#tell(trouble instanceof StreamError ? failed(trouble) : (this.#end ?? { state: this.#leaving }));
    } catch (error) {
      if (trouble === null) throw error;
      console.error(error);
    }
  }

  /** @param {"stopped" | "closed"} how */
  #leave(how) {
    if (this.#leaving !== "stopped") this.#leaving = how;
    this.#connection.abort();
    this.#wake();
  }

  /** @param {Status} status */
  #tell(status) {
    this.status = status;
    this.#manner.onStatus?.(status);
  }

  /** @param {boolean} isFirst after that, only what is still this stream's is written over */
  #keep(isFirst = false) {
    const { key, storage } = this.#manner;
    if (!key || !this.resumable || !(isFirst || this.#isKept)) return;
    /** @type {Position} */
    const position = {
      url: this.#url,
      id: this.id,
      token: this.token,
      last: this.lastEventId,
      ended: this.#end !== null,
    };
    inStorage(storage, (place) => place.setItem(key, JSON.stringify(position)));
  }

  #forget() {
    const { key, storage } = this.#manner;
    if (key && this.#isKept) ResumableStream.forget({ key, storage });
  }

  /** Whether it is this stream's position that is kept, and not another's who has the key by now. */
  get #isKept() {
    return positionIn(this.#manner)?.id === this.id;
  }

  /** What the work comes to, if that takes no longer than the connection may be silent.
   * @template T
   * @param {Promise<T>} work
   * @param {AbortController} controller of the connection */
  async #timely(work, controller = this.#connection) {
    const { idleTimeout = 0 } = this.#manner;
    if (!(idleTimeout > 0 && idleTimeout < Infinity)) return work;
    const silent = () => controller.abort(new Error(`not a byte for ${idleTimeout} ms`));
    const timer = setTimeout(silent, Math.min(idleTimeout, LONGEST_TIMER));
    try {
      return await work;
    } finally {
      clearTimeout(timer);
    }
  }

  /** @param {number} milliseconds */
  #pause(milliseconds) {
    return /** @type {Promise<void>} */ (
      new Promise((resolve) => {
        const done = () => {
          clearTimeout(timer);
          resolve();
        };
        const timer = setTimeout(done, milliseconds);
        this.#wake = done;
      })
    );
  }
}

// -- what is read of answers, and kept ---------------------------------------------------------------

/** @param {Response} answer
 * @param {string} text its body
 * @param {"refused" | "gone"} kind */
function refusal(answer, text, kind = GONE.includes(answer.status) ? "gone" : "refused") {
  const error = parsed(text)?.error;
  const said = isRedirect(answer) ? "a redirect, which is not followed" : messageOf(error);
  const message = `the server answered ${answer.status}${said ? `: ${said}` : ""}`;
  return new StreamError(kind, message, {
    status: answer.status,
    code: error?.code,
    available: error?.available,
    retryAfter: retryAfter(answer.headers.get("Retry-After")),
  });
}

/** Browsers give no status of a redirect, but 0.
 * @param {{ status: number | null }} answer */
function isRedirect({ status }) {
  return status !== null && (status === 0 || (status >= 300 && status < 400));
}

/** Whether asking once more is of no use.
 * @param {StreamError} error */
function isForGood({ status }) {
  if (status === null) return false; // the request was not answered
  return isRedirect({ status }) || (status >= 400 && status < 500 && !WORTH_ANOTHER_TRY.includes(status));
}

/** @param {StreamError} error
 * @returns {{ state: "failed", error: StreamError }} */
function failed(error) {
  return { state: "failed", error };
}

/** How the stream ends with this event; null if it does not.
 * @param {StreamEvent} event
 * @returns {{ state: "done" } | { state: "failed", error: StreamError } | null} */
function endIn(event) {
  const failure = failureIn(event);
  if (failure) return failed(failure);
  return event.data === "[DONE]" ? { state: "done" } : null;
}

/** The forms that errors in a stream have: the gateway's own, and those of engines that it forwards.
 * @param {StreamEvent} event */
function failureIn({ event, data, json }) {
  if (event !== "error" && !json?.error && json?.object !== "error") return null;
  const error = json?.error ?? json;
  return new StreamError("failed", String(messageOf(error) ?? data), { code: error?.code ?? null });
}

/** @param {any} error of an answer or an event, which may be its message alone */
function messageOf(error) {
  return typeof error === "string" ? error : error?.message;
}

/** @param {Response} answer */
function isStream(answer) {
  return answer.body !== null && kindOf(answer).startsWith("text/event-stream");
}

/** @param {Response} answer */
function kindOf(answer) {
  return (answer.headers.get("Content-Type") ?? "of no type").toLowerCase();
}

/** @param {string} text
 * @returns {any} */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @param {unknown} trouble */
function told(trouble) {
  if (!(trouble instanceof Error)) return String(trouble);
  const cause = trouble.cause instanceof Error ? ` (${trouble.cause.message})` : "";
  return trouble.message + cause;
}

/** What is kept is a convenience: a browser that allows no storage, or has no room, must not end a stream.
 * @template T
 * @param {Place | undefined} storage
 * @param {(place: Place) => T} use
 * @returns {T | undefined} */
export function inStorage(storage, use) {
  try {
    const place = storage ?? globalThis.sessionStorage;
    return place && use(place);
  } catch {
    return undefined;
  }
}

/** @param {{ key?: string, storage?: Place }} manner
 * @returns {Position | null} */
function positionIn({ key, storage }) {
  if (!key) return null;
  const kept = parsed(inStorage(storage, (place) => place.getItem(key)) ?? "");
  const fits = ["url", "id", "token"].every((name) => typeof kept?.[name] === "string" && kept[name]);
  return fits && Number.isInteger(kept.last) && kept.last >= 0 && isAddress(kept.url) ? kept : null;
}

/** @param {string | URL} url */
function absolute(url) {
  return new URL(url, globalThis.location?.href).href;
}

/** @param {string} url */
function isAddress(url) {
  try {
    return /^https?:/.test(absolute(url));
  } catch {
    return false;
  }
}
