// The way to a node, and its publish endpoint: one request, one answer, nothing thrown.
import http from "node:http";
import https from "node:https";
import { BARRED, FAILED, REFUSED, TAKEN, TOO_BIG } from "./window.mjs";

const MOST_ANSWER_BYTES = 96 * 1024 * 1024;
const LONGEST_RETRY_AFTER_MS = 600_000;

// Kept-open connections to one channel of a node.
export class Line {
  constructor(url, channel, token = "", timeoutMs = 30_000, maxSockets = 1) {
    const base = new URL(url);
    if (!["http:", "https:"].includes(base.protocol)) {
      throw new TypeError(`${url} is not the address of a node; for example http://127.0.0.1:8484`);
    }
    this.token = token;
    this.timeoutMs = timeoutMs;
    this.base = base;
    this.path = `${base.pathname.replace(/\/+$/, "")}/channels/${encodeURIComponent(channel)}`;
    this.client = base.protocol === "https:" ? https : http;
    this.agent = new this.client.Agent({ keepAlive: true, maxSockets });
  }

  close() {
    this.agent.destroy();
  }

  // Posts a body to an endpoint of the channel; resolves to status, retryAfter and body, rejects when no answer comes.
  post(endpoint, type, body, waitMs = 0) {
    const timeout = this.timeoutMs + waitMs;
    const headers = { "content-type": type, "content-length": Buffer.byteLength(body) };
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    return new Promise((resolve, reject) => {
      const target = new URL(`${this.path}/${endpoint}`, this.base);
      const request = this.client.request(target, { method: "POST", headers, agent: this.agent, timeout });
      request.on("timeout", () => request.destroy(new Error(`no answer within ${timeout} ms`)));
      request.on("error", reject);
      request.on("response", (response) => {
        const pieces = [];
        let size = 0;
        response.on("data", (piece) => {
          size += piece.length;
          if (size > MOST_ANSWER_BYTES) response.destroy(new Error("the answer is larger than any of a node"));
          pieces.push(piece);
        });
        response.on("error", reject);
        response.on("aborted", () => reject(new Error("the connection broke")));
        response.on("end", () =>
          resolve({ status: response.statusCode, retryAfter: response.headers["retry-after"], body: Buffer.concat(pieces).toString() }),
        );
      });
      request.end(body);
    });
  }

  unreachable(error) {
    return { code: "node.unreachable", message: `no node answers at ${this.base.origin}: ${error.message}` };
  }
}

// Where a publisher sends.
export class Door extends Line {
  // Posts CloudEvents as one request; resolves to an answer of window.mjs, never rejects.
  async send(events) {
    try {
      const { status, retryAfter, body } = await this.post("events", "application/cloudevents-batch+json", JSON.stringify(events));
      return readAnswer(status, retryAfter, body, events.length);
    } catch (error) {
      return { kind: FAILED, reason: this.unreachable(error) };
    }
  }
}

// What an HTTP answer to `count` events means. A 200 counts only when it is a node's: any portal on the way says 200.
export function readAnswer(status, retryAfter, body, count) {
  const told = parse(body);
  if (status === 200) {
    if (Array.isArray(told.positions) && told.positions.length === count) return { kind: TAKEN };
    return { kind: FAILED, reason: { code: "http.strange_answer", message: "what answers at this address is not a node" } };
  }
  const reason = { code: String(told.title ?? `http.${status}`), message: String(told.detail ?? `the node answered ${status}`) };
  if (status === 400 || status === 422) return { kind: REFUSED, reason };
  if (status === 413) return { kind: TOO_BIG, reason };
  if (status >= 500 || [408, 425, 429].includes(status)) {
    const seconds = /^\d{1,9}$/.test(retryAfter ?? "") ? Number(retryAfter) : null;
    const wait = seconds === null ? {} : { retryAfterMs: Math.min(seconds * 1000, LONGEST_RETRY_AFTER_MS) };
    return { kind: FAILED, reason, ...wait };
  }
  return { kind: BARRED, reason };
}

export function parse(body) {
  try {
    const value = JSON.parse(body);
    return value !== null && typeof value === "object" ? value : {};
  } catch {
    return {};
  }
}
