#!/usr/bin/env node
// rapport-outbox status DIR | drain DIR URL CHANNEL: what a publisher left behind, and delivering it.
import { Outbox } from "./outbox.mjs";
import { Publisher } from "./publisher.mjs";

const [command, directory, url, channel] = process.argv.slice(2);

async function main() {
  if (command === "status" && directory) {
    const outbox = new Outbox(directory, Date.now());
    console.log(JSON.stringify({ accepted: outbox.last, settled: outbox.settled, waiting: outbox.waiting, rejected: outbox.rejectedCount }));
    await outbox.close();
    return 0;
  }
  if (command === "drain" && directory && url && channel) {
    const publisher = new Publisher({ outbox: directory, url, channel, token: process.env.RAPPORT_TOKEN ?? "" });
    const isDone = await publisher.flush(Number(process.env.RAPPORT_WAIT_MS ?? 30_000));
    const { pending, rejected, trouble } = publisher.status();
    await publisher.close({ waitMs: 0 });
    console.log(JSON.stringify({ pending, rejected, trouble }));
    return isDone ? 0 : 1;
  }
  console.error("usage: rapport-outbox status DIR | drain DIR URL CHANNEL   (RAPPORT_TOKEN, RAPPORT_WAIT_MS)");
  return 2;
}

main().then(
  (code) => (process.exitCode = code),
  (error) => {
    console.error(`rapport-outbox: ${error.message}`);
    process.exitCode = 1;
  },
);
