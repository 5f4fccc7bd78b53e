// The playground's page: a form, an answer in the colours of where it came from, and buttons that break things.

import { ResumableStream, StreamError, inStorage } from "./resumable.js";

const POSITION = "continuation.playground";
const FORM = "continuation.playground.form";
const REMEMBERED = ["prompt", "model", "max_tokens", "gateway"]; // never the authorization
const LOOK_MS = 1000;
const SILENCE_MS = 30_000;
const ENDED = ["done", "failed", "stopped"];

/** @param {string} id */
const part = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
const button = (id) => /** @type {HTMLButtonElement} */ (part(id));

const page = part("playground");
const form = /** @type {HTMLFormElement} */ (part("ask"));
const panes = { reasoning: part("reasoning"), content: part("content-text") };

/** @type {ResumableStream | null} */
let stream = null;
/** The first event of leg 2.
 * @type {number | null} */
let leg2From = null;
let lookTimer = 0;
/** The headers with which the stream on the page was answered; null: it was not yet.
 * @type {Record<string, string> | null} */
let proven = null;

// -- the form ------------------------------------------------------------------------------------

/** @param {string} name */
const field = (name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));
/** @param {string} name */
const given = (name) => field(name).value.trim();

function remember() {
  const kept = Object.fromEntries(REMEMBERED.map((name) => [name, field(name).value]));
  const text = JSON.stringify({ ...kept, is_authorized: given("authorization") !== "" });
  inStorage(undefined, (place) => place.setItem(FORM, text));
}

/** Whether the stream whose position is kept was asked for with an authorization. */
function recall() {
  const kept = inStorage(undefined, (place) => JSON.parse(place.getItem(FORM) ?? "{}")) ?? {};
  for (const name of REMEMBERED) if (typeof kept[name] === "string") field(name).value = kept[name];
  field("authorization").value = "";
  return kept.is_authorized === true;
}

/** @returns {Record<string, string>} */
function authorization() {
  return given("authorization") ? { Authorization: given("authorization") } : {};
}

function body() {
  const limit = given("max_tokens");
  return {
    model: given("model"),
    messages: [{ role: "user", content: field("prompt").value }],
    stream_options: { include_usage: true },
    ...(limit && { max_tokens: Number(limit) }),
  };
}

// -- what is shown -------------------------------------------------------------------------------

/** @param {string} text */
function log(text) {
  const line = document.createElement("li");
  const time = document.createElement("time");
  const now = new Date();
  time.dateTime = now.toISOString();
  time.textContent = `${now.toTimeString().slice(0, 8)}.${String(now.getMilliseconds()).padStart(3, "0")}`;
  line.append(time, text);
  part("log").append(line);
}

/** @param {string} state
 * @param {string} text */
function say(state, text) {
  page.dataset.state = state;
  part("state").textContent = text;
  log(text);
  const runs = ["connecting", "live", "replaying", "reconnecting"].includes(state);
  button("send").disabled = runs;
  button("break-engine").disabled = !stream?.resumable || ENDED.includes(state);
  button("break-connection").disabled = !["live", "replaying"].includes(state);
  button("leave").disabled = !runs;
  button("go-on").disabled = runs || !ResumableStream.restore({ key: POSITION });
  button("stop").disabled = !(runs || state === "closed");
}

/** @param {import("./resumable.js").Status} status */
function told(status) {
  switch (status.state) {
    case "connecting":
      return say(status.state, "Connecting.");
    case "live":
      return say(status.state, stream?.resumable ? "Live." : "Live, but this stream is not resumable.");
    case "replaying":
      return say(status.state, `Replaying up to event ${status.until}.`);
    case "reconnecting":
      return say(
        status.state,
        `The connection is gone: ${status.reason}. Attempt ${status.attempt} in ${Math.round(status.delay)} ms.`,
      );
    case "done":
      return say(status.state, "Done: the answer is whole.");
    case "failed":
      return say(status.state, `Failed: ${status.error.message}`);
    case "stopped":
      return say(status.state, "Stopped.");
    case "closed":
      return say(status.state, "Disconnected. The gateway goes on for a while, and keeps what comes.");
  }
}

/** @param {HTMLElement} element
 * @param {import("./resumable.js").StreamEvent} event */
function dress(element, { id, replayed }) {
  if (id !== null) {
    element.dataset.id = String(id);
    element.title = `event ${id}`;
  }
  element.className = legOf(id);
  if (replayed) element.classList.add("replayed");
}

/** @param {number | null} id */
function legOf(id) {
  return id !== null && leg2From !== null && id >= leg2From ? "leg-2" : "leg-1";
}

/** @param {import("./resumable.js").StreamEvent} event */
function show(event) {
  const number = document.createElement("li");
  number.textContent = event.id === null ? "·" : String(event.id);
  dress(number, event);
  part("events").append(number);
  const choice = event.json?.choices?.[0];
  write(panes.reasoning, choice?.delta?.reasoning ?? choice?.delta?.reasoning_content, event);
  write(panes.content, choice?.delta?.content, event);
  if (choice?.finish_reason) log(`finish_reason: ${choice.finish_reason}`);
  if (event.json?.usage) log(`usage: ${event.json.usage.completion_tokens} tokens`);
}

/** @param {HTMLElement} pane
 * @param {string | null | undefined} text
 * @param {import("./resumable.js").StreamEvent} event */
function write(pane, text, event) {
  if (!text) return;
  const span = document.createElement("span");
  span.textContent = text;
  dress(span, event);
  const follows = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 40;
  pane.append(span);
  if (follows) pane.scrollTop = pane.scrollHeight;
}

function clear() {
  leg2From = null;
  for (const shown of [...Object.values(panes), part("events")]) shown.replaceChildren();
}

/** Where leg 2 begins is known to the gateway alone, and is asked for while there may be one. */
async function look() {
  if (!stream?.resumable || leg2From !== null) return;
  const asked = stream;
  const standing = await asked.standing().catch(() => null);
  if (!standing?.leg2_from || asked.id !== stream.id || leg2From !== null) return;
  leg2From = standing.leg2_from;
  log(`Leg 2 begins at event ${leg2From}.`);
  for (const shown of page.querySelectorAll("[data-id]"))
    shown.classList.replace("leg-1", legOf(Number(/** @type {HTMLElement} */ (shown).dataset.id)));
}

// -- the stream ----------------------------------------------------------------------------------

/** @returns {import("./resumable.js").Manner & { key: string }} */
function manner(headers = authorization()) {
  /** @param {import("./resumable.js").Status} status */
  const onStatus = (status) => {
    if (["live", "replaying"].includes(status.state)) proven = headers;
    told(status);
  };
  return { key: POSITION, headers, onStatus, idleTimeout: SILENCE_MS };
}

/** @param {ResumableStream} started */
async function run(started) {
  stream = started;
  clearInterval(lookTimer);
  lookTimer = setInterval(look, LOOK_MS);
  try {
    for await (const event of started) show(event);
  } catch (error) {
    if (!(error instanceof StreamError)) throw error;
    await afterTrouble(error);
  } finally {
    if (stream === started) {
      clearInterval(lookTimer);
      await look();
    }
  }
}

/** @param {StreamError} error */
async function afterTrouble({ kind, available }) {
  if (kind !== "gone" || !available) return;
  const rest = ResumableStream.restore({ ...manner(proven ?? authorization()), from: available.first - 1 });
  if (!rest) return;
  clear();
  log(`What came before event ${available.first} is not kept any more.`);
  await run(rest);
}

/** @param {SubmitEvent} event */
function send(event) {
  event.preventDefault();
  remember();
  clear();
  proven = null;
  part("log").replaceChildren();
  ResumableStream.forget({ key: POSITION });
  const base = given("gateway") || window.location.origin;
  const url = `${base.replace(/\/+$/, "").replace(/\/v1$/, "")}/v1/chat/completions`;
  run(new ResumableStream({ url, body: body(), ...manner() }));
}

function goOn() {
  const pageIsEmpty = part("events").childElementCount === 0; // after a reload
  const asked = manner(proven ?? authorization());
  const rest = ResumableStream.restore({ ...asked, ...(pageIsEmpty && { from: 0 }) });
  if (rest) run(rest);
}

async function breakEngine() {
  if (!stream) return;
  const token = /** @type {HTMLInputElement} */ (page.querySelector("[name=csrfmiddlewaretoken]")).value;
  const answer = await fetch(/** @type {string} */ (page.dataset.breakUrl), {
    method: "POST",
    headers: { ...(proven ?? authorization()), "X-CSRFToken": token, "X-Resume-Token": stream.token },
    body: new URLSearchParams({ stream: stream.id }),
  }).catch((trouble) => void log(`The engine was not broken: ${trouble.message}`));
  if (!answer) return;
  if (answer.redirected || !answer.ok)
    return log(`The engine was not broken: the admin answered ${answer.status}; are you still logged in?`);
  const { message } = await answer.json();
  log(message);
}

async function stop() {
  const stopped = stream;
  if (!stopped) return;
  try {
    const standing = await stopped.stop();
    say("stopped", standing ? `Stopped at event ${standing.last_event_id}.` : "Stopped.");
  } catch (trouble) {
    say("closed", `Not stopped: ${trouble instanceof Error ? trouble.message : trouble}`);
  }
}

form.addEventListener("submit", send);
button("break-engine").addEventListener("click", breakEngine);
button("break-connection").addEventListener("click", () => stream?.drop());
button("leave").addEventListener("click", () => stream?.close());
button("go-on").addEventListener("click", goOn);
button("reload").addEventListener("click", () => window.location.reload());
button("stop").addEventListener("click", stop);

const wasAuthorized = recall();
const left = ResumableStream.restore({ ...manner(), from: 0 });
if (left && wasAuthorized) {
  say("closed", "There is an answer to go on with: enter its authorization once more, then go on.");
  button("stop").disabled = true;
} else if (left) run(left);
