import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join, relative, sep } from "node:path";

// Files and directories that the build does not depend on.
const LEFT_OUT = new Set(["node_modules", "openapi.json"]);

function* files(directory) {
  for (const entry of readdirSync(directory, { withFileTypes: true })) {
    if (LEFT_OUT.has(entry.name)) continue;
    const path = join(directory, entry.name);
    if (entry.isDirectory()) yield* files(path);
    else yield path;
  }
}

/** SHA-256 over the paths and contents of all sources, in the order of their paths. */
export function sourceDigest(root) {
  const paths = [...files(root)].map((path) => [relative(root, path).split(sep).join("/"), path]);
  const whole = createHash("sha256");
  for (const [name, path] of paths.sort(([one], [other]) => (one < other ? -1 : 1))) {
    whole.update(`${name}\n${createHash("sha256").update(readFileSync(path)).digest("hex")}\n`);
  }
  return whole.digest("hex");
}
