"use strict";
// Shows /overview once a second. Text goes in by textContent only, so no event can bring markup into the page.

const clock = (ms) => new Date(ms).toLocaleTimeString();

function cell(text, className) {
  const td = document.createElement("td");
  td.textContent = text;
  if (className) td.className = className;
  return td;
}

function fill(id, rows, empty, width) {
  const body = document.getElementById(id);
  body.replaceChildren();
  if (!rows.length) {
    const row = body.insertRow();
    const td = cell(empty, "empty");
    td.colSpan = width;
    row.append(td);
    return;
  }
  for (const cells of rows) body.insertRow().append(...cells);
}

const spent = (ms) => (ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(1)} s`);

// One that is broken or failed says why; one that is tried out says how the new version compares.
function state(policy) {
  const [problem] = policy.problems;
  if (problem) return cell(`${policy.state}: ${problem.message}${problem.line ? `, line ${problem.line}` : ""}`, "state-failed");
  if (!policy.shadow) return cell(policy.on_spark ? `${policy.state} on Spark` : policy.state, `state-${policy.state}`);
  const { both, only_running, only_shadow } = policy.tally ?? { both: 0, only_running: 0, only_shadow: 0 };
  const compared = [`${both.toLocaleString()} found by both`, `${only_running.toLocaleString()} missed by it`, `${only_shadow.toLocaleString()} by it alone`];
  return cell(`${policy.state}, with ${policy.shadow} in its shadow: ${compared.join(", ")}`, "state-shadowed");
}

function showPolicies({ policies, policies_in_all }) {
  const figure = (policy, text) => cell(policy.state === "running" && !policy.on_spark ? text : "–", "number");
  fill("policies", policies.map((p) => [
    cell(p.name, "name"), state(p), ...[p.counts.read, p.counts.detections, p.counts.undecided].map((number) => figure(p, number.toLocaleString())),
    figure(p, spent(p.counts.cost_ms)),
  ]), "no policies yet: rapport policy register FILE", 6);
  if (policies_in_all <= policies.length) return;
  const rest = cell(`and ${(policies_in_all - policies.length).toLocaleString()} more: rapport policy list`, "empty");
  rest.colSpan = 6;
  document.getElementById("policies").insertRow().append(rest);
}

// The list is an alert: it is touched only when it changes, lest a screen reader repeats it each second.
let shownConditions = "";
function showConditions({ conditions }) {
  const lines = conditions.map(({ reason, since }) => `${reason} (since ${clock(since)})`);
  if (lines.join("\n") === shownConditions) return;
  shownConditions = lines.join("\n");
  document.getElementById("degraded").hidden = !lines.length;
  document.getElementById("conditions").replaceChildren(...lines.map((line) => {
    const item = document.createElement("li");
    item.textContent = line;
    return item;
  }));
}

function show(overview) {
  showConditions(overview);
  showPolicies(overview);
  const flow = document.getElementById("flow");
  flow.replaceChildren(...overview.channels.map(({ name, count }) => {
    const item = document.createElement("li");
    const number = document.createElement("b");
    number.textContent = count.toLocaleString();
    item.append(number, name);
    return item;
  }));
  fill("detections", overview.detections.map((d) => [
    cell(d.history ? new Date(d.time).toLocaleString() : clock(d.time), "time"), cell(d.policy),
    cell(Object.entries(d.bindings).map(([alias, id]) => `${alias} = ${id}`).join(", ")),
    d.silent.length ? cell(`undecided: ${d.silent.join(", ")} silent`, "state-undecided") : cell(d.history ? "found in imported history" : d.late ? "found late" : "found"),
    cell(d.causes.join(", "), "soft"),
  ]), "nothing yet", 5);
  fill("deliveries", overview.deliveries.map((d) => [
    cell(clock(d.time), "time"), cell(d.peer), cell(d.adapter), cell(d.state.replace("_", " "), `state-${d.state}`), cell(d.text, "soft"),
  ]), "nobody was told anything yet", 5);
  // What was released is no longer held; the newest reading of its kind says what to do about the rest.
  const newest = (held) => overview.quarantine.find((q) => q.source === held.source && q.reason === held.reason);
  fill("quarantine", overview.held.map((held) => [
    cell(held.count.toLocaleString(), "time"), cell(held.source), cell(held.reason), cell(newest(held)?.hint ?? "", "soft"),
  ]), "nothing is held back", 4);
}

async function refresh() {
  const status = document.getElementById("status");
  try {
    const answer = await fetch("/overview");
    if (!answer.ok) throw new Error(answer.status === 401 ? "this node asks for a token" : `status ${answer.status}`);
    show(await answer.json());
    status.textContent = `live · ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    status.textContent = `not connected: ${error.message}`;
  } finally {
    setTimeout(refresh, 1000);
  }
}

refresh();
