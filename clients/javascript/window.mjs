// The sliding window: what to send next, and what an answer means. Pure: time and chance are arguments.
// One request is under way at a time and begins right behind the last acknowledged event, so the node never
// sees an event before the ones ahead of it and may drop everything up to the highest number it has.

export const TAKEN = "taken"; // all events of the request are on the node's disk
export const REFUSED = "refused"; // one of its events is bad
export const TOO_BIG = "too-big"; // the request is larger than the node takes
export const FAILED = "failed"; // no answer, or one that says nothing about the events
export const BARRED = "barred"; // nothing will be taken until a person changes something

export class Window {
  constructor(acknowledged, { mostEvents = 1000, firstPauseMs = 200, longestPauseMs = 30_000 } = {}) {
    this.acknowledged = acknowledged;
    this.stopped = false;
    this.resumeAtMs = null;
    this.trouble = null;
    this.mostEvents = mostEvents;
    this.firstPauseMs = firstPauseMs;
    this.longestPauseMs = longestPauseMs;
    this.size = mostEvents;
    this.suspected = 0; // an event up to this number, after the acknowledged one, is bad
    this.failures = 0;
    this.taken = 0;
  }

  // {first, last} to send now, {until} to wait for, or null when there is nothing to do.
  next(newest, nowMs) {
    if (this.stopped || newest <= this.acknowledged) return null;
    if (this.resumeAtMs !== null && nowMs < this.resumeAtMs) return { until: this.resumeAtMs };
    this.resumeAtMs = null;
    return { first: this.acknowledged + 1, last: Math.min(newest, this.acknowledged + this.#limit()) };
  }

  // Takes in the answer to events up to `last`. Returns {acknowledged, rejected?} when the mark moved, else null.
  answered(last, answer, nowMs, chance) {
    const alone = last === this.acknowledged + 1;
    switch (answer.kind) {
      case TAKEN:
        return this.#take(last);
      case REFUSED:
        if (alone) return this.#reject(answer.reason);
        this.suspected = last;
        return null;
      case TOO_BIG:
        if (alone) return this.#reject(answer.reason);
        this.size = Math.max(1, Math.floor((last - this.acknowledged) / 2));
        return null;
      case BARRED:
        this.stopped = true;
        this.trouble = answer.reason;
        return null;
      default:
        this.trouble = answer.reason;
        this.resumeAtMs = nowMs + (answer.retryAfterMs ?? this.#pause(chance));
        this.failures += 1;
        return null;
    }
  }

  resume() {
    this.stopped = false;
    this.resumeAtMs = null;
    this.failures = 0;
  }

  // Half of the stretch that holds a bad event, until it is alone.
  #limit() {
    if (this.suspected <= this.acknowledged) return this.size;
    return Math.max(1, Math.floor((this.suspected - this.acknowledged) / 2));
  }

  #take(last) {
    this.acknowledged = last;
    this.failures = 0;
    this.trouble = null;
    this.taken += 1;
    if (this.taken % 16 === 0) this.size = Math.min(this.size * 2, this.mostEvents);
    return { acknowledged: last };
  }

  #reject(reason) {
    this.acknowledged += 1;
    this.suspected = 0;
    this.failures = 0;
    this.trouble = null;
    return { acknowledged: this.acknowledged, rejected: reason };
  }

  #pause(chance) {
    const grown = this.firstPauseMs * 2 ** Math.min(this.failures, 30);
    return Math.floor(Math.min(grown, this.longestPauseMs) * (0.5 + chance / 2));
  }
}
