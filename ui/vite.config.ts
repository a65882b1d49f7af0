import { svelte } from "@sveltejs/vite-plugin-svelte";
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { defineConfig, type Plugin } from "vite";
import { sourceDigest } from "./digest.mjs";

const out = resolve(import.meta.dirname, "../src/rapport/web/console");

// Lets a test see, without Node.js, that the committed build is of these sources.
const digest = (): Plugin => ({
  name: "source-digest",
  closeBundle: () => writeFileSync(resolve(out, "sources.sha256"), `${sourceDigest(import.meta.dirname)}\n`),
});

export default defineConfig({
  base: "/console-files/",
  plugins: [svelte(), digest()],
  build: { outDir: out, emptyOutDir: true, assetsDir: "", modulePreload: { polyfill: false }, assetsInlineLimit: 0, target: "es2022" },
  server: { proxy: { "^/(?!console|src|@|node_modules)": "http://127.0.0.1:8080" } },
});
