// What moved at the node (GET /live); pages load again what they show of a part that moved.
import { Refused } from "./api";

export type Part = "events" | "detections" | "log" | "quarantine" | "policies" | "faults" | "network" | "dead_letters";
type State = Record<Part, number | string>;

const STALE_MS = 4_000;

class Live {
  state = $state<State | undefined>(undefined);
  /** Since when there is no connection; 0 while there is one. */
  cutSince = $state(0);
  private source: EventSource | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;

  start(): void {
    if (this.source) return;
    this.source = new EventSource("/live");
    this.source.addEventListener("state", (event) => {
      this.state = JSON.parse((event as MessageEvent<string>).data) as State;
      this.connected();
    });
    this.source.onopen = () => this.connected();
    this.source.onerror = () => {
      const since = Date.now();
      this.timer ??= setTimeout(() => (this.cutSince = since), STALE_MS);
      if (this.source?.readyState === EventSource.CLOSED) this.again();
    };
  }

  stop(): void {
    this.source?.close();
    this.source = undefined;
  }

  private connected(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.cutSince = 0;
  }

  // A node that refuses, such as one that starts, closes for good; the browser would not try again.
  private again(): void {
    this.stop();
    setTimeout(() => this.start(), 3_000);
  }
}

export const live = new Live();

export interface Loaded<T> {
  readonly value: T | undefined;
  readonly fault: Refused | undefined;
  readonly loading: boolean;
  again(): void;
}

const LEAST_PAUSE_MS = 1_500;

/** Loads what a page shows: at once, when what it depends on changes, and when the node moved. */
export function load<T>(fetch: () => Promise<T>, parts: Part[] = []): Loaded<T> {
  let value = $state.raw<T | undefined>(undefined);
  let fault = $state.raw<Refused | undefined>(undefined);
  let loading = $state(true);
  let turn = 0;
  let last = 0;
  let waiting: ReturnType<typeof setTimeout> | undefined;

  async function run(): Promise<void> {
    const own = ++turn;
    last = Date.now();
    try {
      const found = await fetch();
      if (own === turn) [value, fault] = [found, undefined];
    } catch (error) {
      if (own === turn && error instanceof Refused) fault = error;
    } finally {
      if (own === turn) loading = false;
    }
  }

  $effect(() => {
    loading = true;
    void run();
    return () => clearTimeout(waiting);
  });

  let seen = "";
  $effect(() => {
    const mark = parts.map((part) => live.state?.[part] ?? "").join("|");
    if (mark === seen) return;
    const isFirst = !seen;
    seen = mark;
    if (isFirst || !parts.length) return;
    clearTimeout(waiting);
    waiting = setTimeout(() => void run(), Math.max(0, last + LEAST_PAUSE_MS - Date.now()));
  });

  return {
    get value() { return value; },
    get fault() { return fault; },
    get loading() { return loading; },
    again: () => void run(),
  };
}
