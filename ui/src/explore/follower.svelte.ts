// The new events of a channel (GET /channels/NAME/stream). The browser connects again after a cut and
// goes on after the last event by its Last-Event-ID.
import { path, type StoredEvent } from "../api";

const MOST_KEPT = 200;
const AGAIN_MS = 3_000;

export class Follower {
  events = $state.raw<StoredEvent[]>([]);
  state = $state<"off" | "on" | "cut">("off");
  problem = $state("");
  private source: EventSource | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** Follows a channel after a position; `query` is a condition. */
  start(channel: string, query: string, after: number): void {
    this.stop();
    this.events = [];
    this.problem = "";
    this.open(channel, query, after);
  }

  stop(): void {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = undefined;
    this.state = "off";
  }

  private open(channel: string, query: string, after: number): void {
    const search = new URLSearchParams(query ? { query, after: String(after) } : { after: String(after) });
    const source = new EventSource(`${path("channels", channel, "stream")}?${search.toString()}`);
    this.source = source;
    this.state = "cut";
    source.onopen = () => (this.state = "on");
    source.onmessage = (message) => {
      const found = JSON.parse(message.data as string) as StoredEvent;
      this.events = [found, ...this.events].slice(0, MOST_KEPT);
    };
    source.addEventListener("problem", (event) => {
      this.problem = (JSON.parse((event as MessageEvent<string>).data) as { detail: string }).detail;
      this.stop();
    });
    source.onerror = () => {
      if (this.source !== source) return;
      this.state = "cut";
      // A node that refuses, such as one that starts, closes for good; the browser would not try again.
      if (source.readyState !== EventSource.CLOSED) return;
      const reached = Math.max(after, this.events[0]?.position ?? 0);
      this.timer = setTimeout(() => this.open(channel, query, reached), AGAIN_MS);
    };
  }
}
