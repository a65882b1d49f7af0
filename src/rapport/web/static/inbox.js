"use strict";
// Keeps the inbox fresh over a socket. Without it the page works all the same, by reloading.
// Texts go in by textContent only; the page itself is made, and escaped, by the server.

const main = document.getElementById("inbox");
const status = document.getElementById("status");
const place = location.pathname.replace(/\/$/, "");
let pause = 1000;

const article = (message) => [...document.querySelectorAll("article")].find((one) => one.dataset.message === message);

// What somebody is writing in stays as it is.
const isBusy = (one) => one.contains(document.activeElement) || [...one.querySelectorAll("input.say")].some((input) => input.value);

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return location.reload();
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const fresh of page.querySelectorAll("article[data-message]")) {
    const old = article(fresh.dataset.message);
    if (!old || !isBusy(old)) continue;
    old.querySelector(".taken").replaceChildren(...fresh.querySelector(".taken").childNodes);
    fresh.replaceWith(old);
  }
  const open = new Set([...document.querySelectorAll("details[open]")].map((one) => one.dataset.group));
  for (const one of page.querySelectorAll("details")) one.open ||= open.has(one.dataset.group);
  for (const id of ["waiting", "notices", "decided"]) document.getElementById(id).replaceChildren(...page.getElementById(id).childNodes);
  status.textContent = page.getElementById("status").textContent;
  main.querySelector(".note")?.remove();
}

function show(delivery) {
  if (article(delivery.message)) return;
  const one = document.getElementById("blank").content.firstElementChild.cloneNode(true);
  one.dataset.message = delivery.message;
  one.classList.toggle("urgent", delivery.urgent);
  const urgency = one.querySelector(".urgency");
  urgency.textContent = delivery.urgent ? urgency.dataset.word : "";
  one.querySelector(".about").textContent = delivery.about;
  const time = one.querySelector("time");
  time.dateTime = delivery.time;
  time.textContent = delivery.shown_time;
  one.querySelector(".text").textContent = delivery.text;
  one.querySelector("input[name=message]").value = delivery.message;
  const waiting = document.getElementById("waiting");
  waiting.querySelector(".empty")?.remove();
  waiting.prepend(one);
}

// A page in the background has not shown anything yet.
const whenSeen = (call) => {
  if (document.visibilityState === "visible") return requestAnimationFrame(call);
  document.addEventListener("visibilitychange", function seen() {
    if (document.visibilityState !== "visible") return;
    document.removeEventListener("visibilitychange", seen);
    requestAnimationFrame(call);
  });
};

function connect() {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${place}/socket`);
  socket.onopen = () => { pause = 1000; document.body.classList.remove("offline"); refresh().catch(() => {}); };
  socket.onmessage = ({ data }) => {
    const told = JSON.parse(data);
    if (told.delivery) {
      show(told.delivery);
      whenSeen(() => socket.send(JSON.stringify({ shown: told.delivery.key })));
    } else if (told.changed && told.changed !== main.dataset.mark) {
      main.dataset.mark = told.changed;
      refresh().catch(() => {});
    }
  };
  socket.onclose = () => {
    document.body.classList.add("offline");
    setTimeout(connect, pause);
    pause = Math.min(pause * 2, 30000);
  };
}

connect();

// Only HTTPS and this machine have service workers; without one the page works all the same.
navigator.serviceWorker?.register("/static/inbox-worker.js", { scope: "/inbox" }).catch((fault) => console.info(fault.message));
