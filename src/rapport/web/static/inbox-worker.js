"use strict";
// Shows a page of its own while the node cannot be reached. It keeps that page and its style, and
// nothing of anybody's messages.

const CACHE = "rapport-offline-1";
const PAGE = "/static/offline.html";
const STYLE = "/static/rapport.css";

addEventListener("install", (event) => event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll([PAGE, STYLE]))));

addEventListener("activate", (event) => event.waitUntil(
  caches.keys().then((names) => Promise.all(names.filter((name) => name !== CACHE).map((name) => caches.delete(name)))),
));

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.mode === "navigate") event.respondWith(fetch(request).catch(() => caches.match(PAGE)));
  else if (new URL(request.url).pathname === STYLE) event.respondWith(fetch(request).catch(() => caches.match(STYLE)));
});
