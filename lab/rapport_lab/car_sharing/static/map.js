"use strict";
// Draws the streets once, and what moves whenever a picture comes. Text goes in by textContent only.
// The map's y axis points north, a screen's points down: everything is drawn at (east, -north).

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const drawn = new Map();
let picture = { things: [], ties: [] };
let chosen = "";

function make(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent?.append(element);
  return element;
}

function showGround({ west, south, east, north, streets }) {
  const edge = 0.04 * Math.max(east - west, north - south);
  const box = [west - edge, -north - edge, east - west + 2 * edge, north - south + 2 * edge];
  byId("map").setAttribute("viewBox", box.map(Math.round).join(" "));
  byId("streets").replaceChildren(...streets.map(([x1, y1, x2, y2, isMain]) =>
    make("line", { x1, y1: -y1, x2, y2: -y2, class: isMain ? "street main" : "street" })));
}

const shapes = {
  car: (group) => make("rect", { x: -20, y: -13, width: 40, height: 26, rx: 7 }, group),
  bus: (group) => make("rect", { x: -30, y: -17, width: 60, height: 34, rx: 4 }, group),
  person: (group) => make("circle", { r: 13 }, group),
};

function draw(thing) {
  let group = drawn.get(thing.id);
  if (!group) {
    group = make("g", { class: "thing" }, byId("things"));
    make("circle", { class: "ring", r: 40 }, group);
    (shapes[thing.kind] ?? shapes.person)(group).classList.add("shape");
    make("text", { y: -24 }, group).textContent = thing.id;
    group.addEventListener("click", () => choose(thing.id));
    drawn.set(thing.id, group);
  }
  group.setAttribute("transform", `translate(${thing.east} ${-thing.north})`);
  group.classList.toggle("chosen", thing.id === chosen);
  group.querySelector(".shape").setAttribute("class", `shape ${thing.kind} ${thing.state}`);
  group.toggleAttribute("hidden", thing.state === "riding");
  group.setAttribute("visibility", thing.state === "riding" ? "hidden" : "visible");
}

function showTies() {
  const places = new Map(picture.things.map((thing) => [thing.id, thing]));
  const ends = picture.ties.map((tie) => [places.get(tie.one), places.get(tie.other), tie.state]);
  byId("ties").replaceChildren(...ends.filter(([one, other]) => one && other).map(([one, other, state]) =>
    make("line", { x1: one.east, y1: -one.north, x2: other.east, y2: -other.north, class: `tie ${state}` })));
}

function showChosen() {
  const thing = picture.things.find((one) => one.id === chosen);
  const way = thing ? [[thing.east, thing.north], ...thing.way] : [];
  byId("way").setAttribute("points", way.map(([east, north]) => `${east},${-north}`).join(" "));
  const text = thing ? `${thing.id}: ${thing.says}` : chosen ? `${chosen} is not heard any more` : "Choose one on the map or in the tables.";
  if (byId("chosen").textContent !== text) byId("chosen").textContent = text;
}

function cell(text) {
  const td = document.createElement("td");
  td.textContent = text;
  return td;
}

// Rows stay where they are, so that who reads or has one in focus is not thrown off it.
function showEverybody() {
  const body = byId("everybody");
  const rows = new Map([...body.rows].map((row) => [row.dataset.id, row]));
  for (const thing of picture.things) {
    let row = rows.get(thing.id);
    if (!row) {
      row = body.insertRow();
      row.dataset.id = thing.id;
      const button = document.createElement("button");
      button.className = "choose";
      button.textContent = thing.id;
      button.addEventListener("click", () => choose(thing.id));
      const name = document.createElement("td");
      name.append(button);
      row.append(name, cell(""), cell(""));
    }
    rows.delete(thing.id);
    const words = [row.cells[0].textContent, thing.kind === "person" ? "on foot" : thing.kind, thing.says];
    for (const number of [1, 2]) if (row.cells[number].textContent !== words[number]) row.cells[number].textContent = words[number];
  }
  for (const row of rows.values()) row.remove();
}

const clock = (ms) => `${Math.floor(ms / 60000)}:${String(Math.floor(ms / 1000) % 60).padStart(2, "0")}`;

function showWords({ happenings, counts }) {
  byId("counts").replaceChildren(...Object.entries(counts).map(([name, count]) => {
    const item = document.createElement("li");
    const number = document.createElement("b");
    number.textContent = count.toLocaleString();
    item.append(number, ` ${name}`);
    return item;
  }));
  const list = byId("happenings");
  const last = Number(list.firstElementChild?.dataset.number ?? 0);
  for (const { number, time_ms, text } of [...happenings].reverse()) {
    if (number <= last) continue;
    const item = document.createElement("li");
    item.dataset.number = number;
    const time = document.createElement("time");
    time.textContent = clock(time_ms);
    item.append(time, text);
    list.prepend(item);
  }
  while (list.children.length > 200) list.lastElementChild.remove();
}

function show(next) {
  picture = next;
  const there = new Set(picture.things.map((thing) => thing.id));
  for (const [id, group] of drawn) if (!there.has(id)) { group.remove(); drawn.delete(id); }
  picture.things.forEach(draw);
  showTies();
  showChosen();
  showEverybody();
  showWords(picture);
  byId("status").textContent = picture.is_over ? `over · ${clock(picture.time_ms)}` : `live · ${clock(picture.time_ms)}`;
}

function choose(id) {
  chosen = id;
  picture.things.forEach(draw);
  showChosen();
}

byId("map").addEventListener("keydown", (event) => {
  const names = picture.things.filter((thing) => thing.state !== "riding").map((thing) => thing.id);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") return choose("");
  if (!step || !names.length) return;
  event.preventDefault();
  const at = names.indexOf(chosen);
  choose(names[at < 0 ? (step > 0 ? 0 : names.length - 1) : (at + step + names.length) % names.length]);
});

async function start() {
  try {
    const answer = await fetch("/ground");
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    showGround(await answer.json());
  } catch (error) {
    byId("status").textContent = `not connected: ${error.message}`;
    setTimeout(start, 1000);
    return;
  }
  const stream = new EventSource("/pictures");
  stream.addEventListener("picture", ({ data }) => show(JSON.parse(data)));
  stream.onerror = () => { if (!picture.is_over) byId("status").textContent = "not connected"; };
}

start();
