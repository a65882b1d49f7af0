// Shares the messages of a channel with other workers: leased, acked or given back.
//
//   import { LeasedListener } from "rapport-client/leased-listener";
//   const worker = new LeasedListener({ url: "http://127.0.0.1:8484", channel: "jobs", leaseMs: 30_000 });
//   for (const job of await worker.pull({ count: 10, waitMs: 20_000 })) {
//     await work(job.event.data);
//     await worker.ack(job);
//   }
import { setTimeout as pause } from "node:timers/promises";
import { Line, parse } from "./door.mjs";

const LONGEST_WAIT_MS = 20_000;
const PAUSE_MS = 200;

// What was acked never comes again; what was not, within the lease and whatever ended this program, the next worker gets.
export class LeasedListener {
  #line;
  #request;
  #leaseMs;
  #closed = new AbortController();
  #running = null;

  constructor({ url, channel, query = {}, kind, token = "", leaseMs = 30_000, maxTries = 5, requestMs = 30_000 }) {
    if (!Number.isInteger(leaseMs) || leaseMs < 1) throw new TypeError(`a lease cannot last ${leaseMs} ms`);
    this.#line = new Line(url, channel, token, requestMs, 8);
    this.#request = { query, take: true, lease_ms: leaseMs, max_tries: maxTries, ...(kind ? { kind } : {}) };
    this.#leaseMs = leaseMs;
    this.trouble = null; // why the node could not be asked the last time
  }

  // Up to `count` messages that nobody else has, waiting for the first one; each has `event`, `position`, `delivery`, `tries`.
  // Empty when the time is over. Throws when the node refuses to be asked.
  async pull({ count = 1, waitMs = 0 } = {}) {
    const deadline = performance.now() + waitMs;
    for (;;) {
      this.#checkOpen();
      const left = Math.max(0, Math.floor(deadline - performance.now()));
      const wait = Math.min(left, LONGEST_WAIT_MS);
      const batch = await this.#ask("requests", { ...this.#request, max_messages: count, wait_ms: wait }, wait);
      const jobs = batch === null ? [] : leasedEvents(batch);
      if (jobs.length > 0 || performance.now() >= deadline) return jobs;
      if (batch === null) await this.#pause(Math.min(PAUSE_MS, left));
    }
  }

  // These are done; on disk when it resolves. False when another worker has one of them because its lease had ended.
  ack(...jobs) {
    return this.#settle({ ack: jobs.map((job) => job.delivery) });
  }

  // These are not done: the next worker gets them, after `delayMs`; `error` is kept for the dead letter.
  nak(jobs, { delayMs = 0, error = "" } = {}) {
    const all = Array.isArray(jobs) ? jobs : [jobs];
    return this.#settle({ nak: all.map((job) => job.delivery), delay_ms: delayMs, error: String(error) });
  }

  // Keeps these for at least `leaseMs` from now on; resolves as `ack` does.
  renew(jobs, { leaseMs = this.#leaseMs } = {}) {
    const all = Array.isArray(jobs) ? jobs : [jobs];
    return this.#settle({ renew: all.map((job) => job.delivery), lease_ms: leaseMs });
  }

  // Calls `callback(job)` for one message after the other until `close`: acked when it resolves, given back when it throws.
  run(callback, { retryAfterMs = 1000 } = {}) {
    this.#running ??= this.#work(callback, retryAfterMs);
    return this.#running;
  }

  // Ends after a callback under way; what was not acked comes again when its lease ends.
  async close() {
    this.#closed.abort();
    await this.#running;
    this.#line.close();
  }

  // --- in detail ---

  async #work(callback, retryAfterMs) {
    while (!this.#closed.signal.aborted) {
      try {
        for (const job of await this.pull({ waitMs: 1000 })) await this.#handle(callback, job, retryAfterMs);
      } catch (error) {
        this.trouble = { code: error.code ?? "worker.failed", message: error.message };
        await this.#pause(retryAfterMs);
      }
    }
  }

  async #handle(callback, job, retryAfterMs) {
    try {
      await callback(job);
    } catch (error) {
      await this.nak(job, { delayMs: retryAfterMs, error: `${error?.name ?? "Error"}: ${error?.message ?? error}` });
      return;
    }
    await this.ack(job);
  }

  // Sends answers until the node has them, as long as a lease lasts.
  async #settle(answers) {
    const deadline = performance.now() + this.#leaseMs;
    for (;;) {
      const settled = await this.#ask("acks", answers);
      if (settled !== null) return settled.stale.length === 0;
      if (performance.now() >= deadline) throw refusal({ code: "listener.not_settled", message: `the node could not be told: ${this.trouble.message}` });
      await this.#pause(PAUSE_MS);
    }
  }

  // The answer; null when there was none that counts. Throws when the node refuses.
  async #ask(endpoint, asked, waitMs = 0) {
    let answer;
    try {
      answer = await this.#line.post(endpoint, "application/json", JSON.stringify(asked), waitMs);
    } catch (error) {
      this.trouble = this.#line.unreachable(error);
      return null;
    }
    const told = parse(answer.body);
    const isOurs = endpoint === "acks" ? Array.isArray(told.stale) : Array.isArray(told.events);
    if (answer.status === 200 && isOurs) {
      this.trouble = null;
      return told;
    }
    this.trouble = { code: String(told.title ?? `http.${answer.status}`), message: String(told.detail ?? `the node answered ${answer.status}`) };
    if (answer.status === 200 || answer.status >= 500 || [408, 425, 429].includes(answer.status)) return null;
    throw refusal(this.trouble);
  }

  async #pause(ms) {
    await pause(ms, undefined, { signal: this.#closed.signal }).catch(() => {});
  }

  #checkOpen() {
    if (this.#closed.signal.aborted && this.#running === null) throw new Error("the listener is closed");
  }
}

function leasedEvents({ events, deliveries = [] }) {
  return deliveries.map(({ id, tries }, index) => ({ event: events[index], position: events[index].position, delivery: id, tries }));
}

function refusal({ code, message }) {
  return Object.assign(new Error(message), { code });
}
