/** Types of resumable.js, for those who install it; its comments say what each means. */

export interface StreamEvent {
  id: number | null;
  event: string;
  data: string;
  json: any;
  replayed: boolean;
}

export interface Retry {
  base: number;
  cap: number;
  attempts: number;
  total: number;
}

export type Status =
  | { state: "connecting" }
  | { state: "live" }
  | { state: "done" }
  | { state: "stopped" }
  | { state: "closed" }
  | { state: "replaying"; until: number }
  | { state: "reconnecting"; attempt: number; delay: number; reason: string }
  | { state: "failed"; error: StreamError };

export type Place = Pick<Storage, "getItem" | "setItem" | "removeItem">;

export interface Manner {
  headers?: Record<string, string>;
  checkpoints?: boolean;
  key?: string;
  storage?: Place;
  signal?: AbortSignal;
  onStatus?: (status: Status) => void;
  idleTimeout?: number;
  retry?: Partial<Retry>;
  credentials?: RequestCredentials;
  fetch?: typeof globalThis.fetch;
  online?: EventTarget;
  random?: () => number;
}

export interface Options extends Manner {
  url: string | URL;
  body: Record<string, unknown>;
}

export interface RestoreOptions extends Manner {
  key: string;
  from?: number;
}

export interface Standing {
  stream_id: string;
  state: string;
  available: { first: number; last: number } | null;
  last_event_id: number;
  leg2_from: number | null;
  readers: number;
  started_at: string | null;
  ended_at: string | null;
  expires_in: number | null;
}

export type StreamErrorKind =
  | "unreachable"
  | "refused"
  | "not_a_stream"
  | "broken"
  | "failed"
  | "gone"
  | "gave_up"
  | "too_large";

export class StreamError extends Error {
  constructor(
    kind: StreamErrorKind,
    message: string,
    more?: {
      status?: number;
      code?: string | number | null;
      cause?: unknown;
      retryAfter?: number;
      available?: { first: number; last: number } | null;
    },
  );
  readonly kind: StreamErrorKind;
  readonly status: number | null;
  readonly code: string | number | null;
  readonly available: { first: number; last: number } | null;
  readonly retryAfter: number;
}

export class ResumableStream implements AsyncIterable<StreamEvent> {
  constructor(options: Options);
  static restore(options: RestoreOptions): ResumableStream | null;
  static forget(options: { key: string; storage?: Place }): void;
  readonly id: string;
  readonly token: string;
  readonly lastEventId: number;
  readonly status: Status;
  readonly resumable: boolean;
  [Symbol.asyncIterator](): AsyncGenerator<StreamEvent, void, void>;
  stop(): Promise<Standing | null>;
  close(): void;
  drop(): void;
  standing(): Promise<Standing>;
}

export class EventParser {
  push(bytes: Uint8Array): { id: string | null; event: string; data: string }[];
}

export function backoff(attempt: number, retry: Pick<Retry, "base" | "cap">, random?: () => number): number;
export function retryAfter(value: string | null, now?: number): number;
export function inStorage<T>(storage: Place | undefined, use: (place: Place) => T): T | undefined;
