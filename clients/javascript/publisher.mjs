// Publishes events to a channel of a Rapport node through an outbox on disk, in order, each stored once.
//
//   import { Publisher } from "rapport-client";
//   const publisher = new Publisher({ outbox: "outbox", url: "http://127.0.0.1:8484", channel: "lab", source: "balance-3" });
//   await publisher.publish({ type: "sample.mass", data: { grams: 12.5 } });   // on disk from here on
//   await publisher.close({ waitMs: 5000 });
import { randomUUID } from "node:crypto";
import { Door } from "./door.mjs";
import { Outbox } from "./outbox.mjs";
import { Window } from "./window.mjs";

const REQUEST_BYTES = 2 * 1024 * 1024;
const MOST_DATA_BYTES = 32 * 1024 * 1024;
const ATTRIBUTES = new Set(["specversion", "datacontenttype", "source", "id", "type", "time", "subject", "data"]);
const STAMP = new Set(["publisher", "epoch", "sequence", "sequencedin"]);

export class Publisher {
  #outbox;
  #door;
  #window;
  #source;
  #timer = null;
  #sending = false;
  #closed = false;
  #ending = null;
  #waiters = [];

  // Opens or makes the outbox directory; throws when another process holds it.
  constructor({ outbox, url, channel, source = "", token = "", requestMs = 30_000, ...settings }) {
    this.#door = new Door(url, channel, token, requestMs);
    this.#outbox = new Outbox(outbox, Date.now());
    this.#window = new Window(this.#outbox.settled, settings);
    this.#source = source;
    this.#wake();
  }

  // Accepts one event; resolves to its id when it is on disk. Waits for the disk, never for the network.
  async publish({ type, source = this.#source, id = randomUUID(), subject, time = new Date(), data = null, headers = {} }) {
    if (this.#closed) throw new Error("the publisher is closed");
    const event = makeEvent({ type, source, id, subject, time, data, headers });
    await this.#outbox.add(event);
    this.#wake();
    return id;
  }

  // Resolves to whether everything accepted so far is settled; waits until it is, delivery has stopped, or the time is over.
  flush(timeoutMs = Infinity) {
    const target = this.#outbox.last;
    if (this.#isOver(target)) return Promise.resolve(this.#outbox.settled >= target);
    return new Promise((resolve) => {
      const waiter = { target, resolve, timer: null };
      if (Number.isFinite(timeoutMs)) waiter.timer = setTimeout(() => this.#answer(waiter), timeoutMs);
      this.#waiters.push(waiter);
    });
  }

  // Tries again at once after a stop, with another token if one is given.
  resume(token) {
    if (token !== undefined) this.#door.token = token;
    this.#window.resume();
    this.#wake();
  }

  // Ends; what is not delivered stays in the outbox. Waits up to `waitMs` for delivery first.
  async close({ waitMs = 5000 } = {}) {
    this.#ending ??= this.#end(waitMs);
    return this.#ending;
  }

  status() {
    const { identity, last, settled, damaged, rejectedCount } = this.#outbox;
    const { stopped, trouble } = this.#window;
    return { ...identity, accepted: last, settled, pending: last - settled, rejected: rejectedCount, damaged, stopped, trouble };
  }

  // Events the node will never take, each with the reason.
  rejected() {
    return this.#outbox.rejected();
  }

  // --- delivery ---

  #wake() {
    if (this.#sending || this.#closed) return;
    clearTimeout(this.#timer);
    const step = this.#window.next(this.#outbox.last, now());
    if (step === null) return this.#tell();
    if (step.until !== undefined) this.#timer = setTimeout(() => this.#wake(), Math.max(1, step.until - now()));
    else void this.#send(step);
  }

  async #send({ last }) {
    this.#sending = true;
    const batch = this.#outbox.readWaiting(last, REQUEST_BYTES);
    const reached = batch.length > 0 ? batch.at(-1).sequence : last;
    // Nothing left of them: the disk lost these events; `status().damaged` tells.
    const answer = batch.length > 0 ? await this.#door.send(batch.map((one) => one.event)) : { kind: "taken" };
    const moved = this.#window.answered(this.#countable(batch, reached), answer, now(), Math.random());
    if (moved !== null && !this.#closed) this.#settle(moved, batch[0]);
    this.#sending = false;
    this.#tell();
    this.#wake();
  }

  // A batch of one is alone even when lost numbers stand before it.
  #countable(batch, reached) {
    if (batch.length === 1) this.#window.acknowledged = Math.max(this.#window.acknowledged, reached - 1);
    return reached;
  }

  #settle({ acknowledged, rejected }, first) {
    try {
      this.#outbox.settle(acknowledged, rejected && { reason: rejected, time: new Date().toISOString(), event: first.event });
    } catch (error) {
      // The mark is not on disk: go back to the one that is, later.
      this.#window = new Window(this.#outbox.settled, this.#window);
      this.#window.resumeAtMs = now() + 1000;
      this.#window.trouble = { code: "outbox.failed", message: error.message };
    }
  }

  async #end(waitMs) {
    if (waitMs > 0) await this.flush(waitMs);
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#door.close();
    this.#tell();
    await this.#outbox.close();
  }

  #isOver(target) {
    return this.#outbox.settled >= target || this.#window.stopped || this.#closed;
  }

  #tell() {
    for (const waiter of this.#waiters.filter((one) => this.#isOver(one.target))) this.#answer(waiter);
  }

  #answer(waiter) {
    clearTimeout(waiter.timer);
    this.#waiters = this.#waiters.filter((one) => one !== waiter);
    waiter.resolve(this.#outbox.settled >= waiter.target);
  }
}

function makeEvent({ type, source, id, subject, time, data, headers }) {
  for (const [name, value] of Object.entries({ type, source, id })) {
    if (typeof value !== "string" || value === "" || value.length > 256) {
      throw new TypeError(`an event needs ${name}, a text of 1 to 256 characters`);
    }
  }
  for (const name of Object.keys(headers)) {
    if (ATTRIBUTES.has(name) || STAMP.has(name) || !/^[a-z0-9]+$/.test(name) || typeof headers[name] !== "string") {
      throw new TypeError(`${name} cannot be a header: lower-case letters and digits with a text, and not an attribute's name`);
    }
  }
  const text = JSON.stringify(data);
  if (text === undefined) throw new TypeError("the data cannot be written as JSON");
  if (Buffer.byteLength(text) > MOST_DATA_BYTES) throw new TypeError("the data is larger than 32 MiB");
  const event = { specversion: "1.0", id, source, type, time: new Date(time).toISOString(), ...headers, data };
  return subject === undefined ? event : { ...event, subject };
}

function now() {
  return performance.now();
}
