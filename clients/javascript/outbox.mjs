// The publisher's own log on disk: lines of JSON in numbered files, written by one process. An event is a line with
// its number and a checksum; a line that the end of the process cut off is dropped at the next opening.
import { createHash, randomUUID } from "node:crypto";
import fs from "node:fs";
import { open } from "node:fs/promises";
import path from "node:path";

const SEGMENT_BYTES = 4 * 1024 * 1024;

export class Outbox {
  constructor(directory, nowMs) {
    this.directory = directory;
    fs.mkdirSync(directory, { recursive: true });
    this.#lock();
    try {
      this.identity = this.#beginEpoch(nowMs);
      this.settled = this.#readProgress();
      this.damaged = 0;
      this.places = []; // {sequence, name, offset, length} of events that wait, oldest first: the events stay on disk
      this.head = 0; // places before this one are settled
      this.last = this.settled;
      this.#readEvents();
    } catch (error) {
      this.#unlock();
      throw error;
    }
    this.gathered = [];
    this.writing = null;
    this.file = null;
  }

  get rejectedCount() {
    return this.rejected().length;
  }

  get waiting() {
    return this.places.length - this.head;
  }

  // Makes an event durable; resolves to its number. Calls that come while the disk is busy share the next sync.
  add(event) {
    return new Promise((resolve, reject) => {
      this.gathered.push({ event, resolve, reject });
      this.writing ??= this.#write();
    });
  }

  // Up to `last`, as many from the front as fit into so many bytes, at least one.
  readWaiting(last, mostBytes) {
    const found = [];
    let size = 0;
    for (let index = this.head; index < this.places.length; index += 1) {
      const place = this.places[index];
      if (place.sequence > last || (found.length > 0 && size + place.length > mostBytes)) break;
      size += place.length;
      const one = this.#readPlace(place);
      if (one !== null) found.push(one);
    }
    return found;
  }

  // Moves the mark, durably; a rejected event is kept first.
  settle(sequence, rejected) {
    if (rejected) appendSynced(path.join(this.directory, "rejected.jsonl"), `${JSON.stringify(rejected)}\n`);
    replaceSynced(this.directory, "progress.json", JSON.stringify({ settled: sequence }));
    this.settled = sequence;
    while (this.head < this.places.length && this.places[this.head].sequence <= sequence) this.head += 1;
    // Cut off what is settled only when it is most of the list, so that settling costs the same however many wait.
    if (this.head * 2 > this.places.length) this.places = this.places.slice(this.head);
    if (this.places.length === 0 || this.places[0].sequence > sequence) this.head = 0;
    this.#letGo();
  }

  rejected() {
    const file = path.join(this.directory, "rejected.jsonl");
    if (!fs.existsSync(file)) return [];
    return fs.readFileSync(file, "utf8").split("\n").flatMap((line) => tryParse(line) ?? []);
  }

  async close() {
    if (this.writing) await this.writing;
    if (this.file) await this.file.handle.close();
    this.file = null;
    this.#unlock();
  }

  // --- writing ---

  async #write() {
    while (this.gathered.length > 0) {
      const group = this.gathered.splice(0);
      try {
        await this.#writeGroup(group);
      } catch (error) {
        for (const one of group) one.reject(error);
        await this.#forgetFile();
      }
    }
    this.writing = null; // in the same turn as the last look at `gathered`, so that nobody is left waiting there
  }

  async #writeGroup(group) {
    const file = await this.#openFile();
    const entries = group.map(({ event }, index) => this.#entry(this.last + 1 + index, event));
    await file.handle.appendFile(entries.map((entry) => entry.line).join(""));
    await file.handle.datasync();
    for (const { sequence, length } of entries) {
      this.places.push({ sequence, name: file.name, offset: file.size, length });
      file.size += length;
    }
    this.last += group.length;
    group.forEach((one, index) => one.resolve(entries[index].sequence));
  }

  #entry(sequence, event) {
    const { publisher, epoch } = this.identity;
    const stamped = { ...event, publisher, epoch: String(epoch), sequence: String(sequence) };
    const text = JSON.stringify(stamped);
    const line = `${sequence} ${digest(text)} ${text}\n`;
    return { sequence, line, length: Buffer.byteLength(line) };
  }

  async #openFile() {
    if (this.file && this.file.size < SEGMENT_BYTES) return this.file;
    if (this.file) await this.file.handle.close();
    const name = fileName(this.last + 1);
    const handle = await open(path.join(this.directory, name), "a");
    // Whatever an earlier failure left in a file of this name must not run into our first line.
    if ((await handle.stat()).size > 0) await handle.appendFile("\n");
    this.file = { name, size: (await handle.stat()).size, handle };
    syncDirectory(this.directory);
    return this.file;
  }

  // After a failed write nobody knows what is in the file: cut it back to what was acknowledged.
  async #forgetFile() {
    if (!this.file) return;
    const { handle, size } = this.file;
    this.file = null;
    // A disk that refuses this too leaves lines of events that were not accepted; they may be sent all the same.
    await handle.truncate(size).catch(() => {});
    await handle.close().catch(() => {});
  }

  // --- opening ---

  #beginEpoch(nowMs) {
    const file = path.join(this.directory, "outbox.json");
    const former = fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, "utf8")) : null;
    const identity = { publisher: former?.publisher ?? randomUUID(), epoch: Math.max(nowMs, (former?.epoch ?? 0) + 1) };
    replaceSynced(this.directory, "outbox.json", JSON.stringify(identity));
    return identity;
  }

  #readProgress() {
    const file = path.join(this.directory, "progress.json");
    return fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, "utf8")).settled : 0;
  }

  #readEvents() {
    for (const name of this.#files()) {
      this.last = Math.max(this.last, firstOf(name) - 1);
      let offset = 0;
      for (const line of this.#wholeLines(name)) {
        const length = line.length + 1;
        if (length > 1) this.#takeIn(readLine(line.toString()), { name, offset, length });
        offset += length;
      }
    }
  }

  // The lines of a file; one that the end of the process cut off was never acknowledged and is cut away.
  #wholeLines(name) {
    const file = path.join(this.directory, name);
    const bytes = fs.readFileSync(file);
    const end = bytes.lastIndexOf(10) + 1;
    if (end < bytes.length) fs.truncateSync(file, end);
    const lines = [];
    for (let from = 0; from < end; ) {
      const to = bytes.indexOf(10, from);
      lines.push(bytes.subarray(from, to));
      from = to + 1;
    }
    return lines;
  }

  #takeIn(one, place) {
    if (one === null) {
      this.damaged += 1;
      return;
    }
    if (one.sequence > this.settled) this.places.push({ sequence: one.sequence, ...place });
    this.last = Math.max(this.last, one.sequence);
  }

  #readPlace({ name, offset, length }) {
    const handle = fs.openSync(path.join(this.directory, name), "r");
    try {
      const line = Buffer.alloc(length - 1);
      fs.readSync(handle, line, 0, length - 1, offset);
      const one = readLine(line.toString());
      if (one === null) this.damaged += 1;
      return one;
    } finally {
      fs.closeSync(handle);
    }
  }

  #files() {
    return fs.readdirSync(this.directory).filter((name) => /^events-\d{15}\.jsonl$/.test(name)).sort();
  }

  // Removes files whose events are all settled; the newest one stays.
  #letGo() {
    const files = this.#files();
    for (let index = 0; index + 1 < files.length && firstOf(files[index + 1]) <= this.settled + 1; index += 1) {
      fs.rmSync(path.join(this.directory, files[index]));
    }
  }

  #lock() {
    const file = path.join(this.directory, "lock");
    for (let tries = 0; tries < 2; tries += 1) {
      try {
        fs.writeFileSync(file, String(process.pid), { flag: "wx" });
        return;
      } catch (error) {
        if (error.code !== "EEXIST") throw error;
        const holder = Number(fs.readFileSync(file, "utf8"));
        if (isAlive(holder)) throw new Error(`the outbox ${this.directory} is held by process ${holder}`);
        fs.rmSync(file, { force: true });
      }
    }
    throw new Error(`the outbox ${this.directory} cannot be locked`);
  }

  #unlock() {
    fs.rmSync(path.join(this.directory, "lock"), { force: true });
  }
}

function readLine(line) {
  const match = /^(\d+) ([0-9a-f]{16}) (.*)$/.exec(line);
  if (match === null || digest(match[3]) !== match[2]) return null;
  return { sequence: Number(match[1]), event: JSON.parse(match[3]) };
}

function digest(text) {
  return createHash("sha256").update(text).digest("hex").slice(0, 16);
}

function fileName(first) {
  return `events-${String(first).padStart(15, "0")}.jsonl`;
}

function firstOf(name) {
  return Number(name.slice(7, 22));
}

function isAlive(pid) {
  if (!Number.isInteger(pid) || pid <= 0 || pid === process.pid) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === "EPERM";
  }
}

function tryParse(line) {
  try {
    return [JSON.parse(line)];
  } catch {
    return null;
  }
}

function appendSynced(file, text) {
  const handle = fs.openSync(file, "a");
  try {
    fs.writeSync(handle, text);
    fs.fsyncSync(handle);
  } finally {
    fs.closeSync(handle);
  }
}

function replaceSynced(directory, name, text) {
  const fresh = path.join(directory, `${name}-new`);
  fs.rmSync(fresh, { force: true });
  appendSynced(fresh, `${text}\n`);
  fs.renameSync(fresh, path.join(directory, name));
  syncDirectory(directory);
}

function syncDirectory(directory) {
  const handle = fs.openSync(directory, "r");
  try {
    fs.fsyncSync(handle);
  } finally {
    fs.closeSync(handle);
  }
}
