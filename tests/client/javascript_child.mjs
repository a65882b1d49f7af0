// Publishes numbered events until it is killed; tells the number of each one that was accepted.
import fs from "node:fs";
import { Publisher } from "../../clients/javascript/publisher.mjs";

const [outbox, url, channel, first] = process.argv.slice(2);
const publisher = new Publisher({ outbox, url, channel, source: "child", firstPauseMs: 20, longestPauseMs: 200 });
for (let number = Number(first); ; number += 1) {
  await publisher.publish({ type: "child.counted", id: `n${number}`, data: { number } });
  fs.writeSync(1, `${number}\n`);
}
