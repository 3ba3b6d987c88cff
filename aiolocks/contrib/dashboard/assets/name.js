// The page of one name.

import { documentOf, duration, el, foreign, moment, nextTick, since, strip, until, visible, who } from "./text.js";
import { fill, rows, show } from "./live.js";

const asked = new URLSearchParams(location.search);
const kind = asked.get("kind") ?? "";
const name = asked.get("name") ?? "";
const get = (id) => document.getElementById(id);

get("kind").textContent = visible(kind);
get("name").textContent = visible(name);
get("name").classList.toggle("long", name.length > 100);
get("confirm-name").textContent = visible(name);
document.title = visible(name) + " – locks";

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, ...shown.flatMap(([label, value]) => [el("dt", {}, label), el("dd", {}, value)]));
}

function holderRow(row) {
  const span = [row.mode, row.span, row.keys].filter(Boolean).map(visible).join(" ");
  return el("li", {},
    el("p", { class: "lead" }, who(row)),
    facts([
      ["held for", since(row.since)],
      ["left", until(row.until)],
      ["others waited", row.charged ? duration(row.charged) : null],
      ["holds", span],
      ["permits", row.permits === null ? null : String(row.permits)],
      ["kept between uses", row.cached ? "yes" : null],
      ["depth", row.depth === null ? null : String(row.depth)],
      ["since", moment(row.since)],
      ["fencing token", row.fence === null ? null : String(row.fence)],
      ["lease", row.lease],
      ["value", row.value ? documentOf(row.value) : null],
      ["metadata", row.metadata ? documentOf(row.metadata) : null],
    ]));
}

function waitingRow(row) {
  return el("li", { class: "split" }, who(row), el("strong", {}, since(row.since)));
}

function historyRow(row) {
  const about = row.about > 2 ? " (or up to " + duration(row.about) + " before)" : "";
  const charged = row.charged ? ", others waited " + duration(row.charged) : "";
  const length = row.since === null ? "" : " for " + duration(row.until - row.since);
  return el("li", {},
    el("p", {}, who(row), length),
    el("p", { class: "muted" }, moment(row.since), " to ", moment(row.until), about, charged));
}

function heatRow(row) {
  return el("li", {}, el("p", { class: "split" }, el("span", {}, "waited in all"), el("strong", {}, duration(row.total))),
    strip(row.levels, row.total));
}

function termRow(row) {
  return el("li", {},
    el("p", { class: "split" }, who(row), el("span", {}, moment(row.since))),
    row.value ? el("p", { class: "muted value" }, documentOf(row.value)) : "");
}

function tickRow(row) {
  const took = row.seconds === null ? "" : "took " + duration(row.seconds) + " ";
  return el("li", {},
    el("p", { class: "split" }, el("strong", { class: "outcome " + row.outcome }, row.outcome),
      el("span", {}, row.due === null ? "out of turn" : "due " + moment(row.due))),
    el("p", { class: "muted" }, "began " + moment(row.since) + " ", took, row.attempt > 1 ? "attempt " + row.attempt + " " : "",
      row.host ? who(row) : ""),
    row.error ? el("p", { class: "problem" }, foreign(row.error)) : "");
}

function auditRow(row) {
  return el("li", {},
    el("p", { class: "split" }, el("strong", {}, row.outcome), el("span", {}, moment(row.at))),
    el("p", { class: "muted" }, "by ", foreign(row.by), "; it was ", foreign(row.held)));
}

const SECTIONS = {
  holders: holderRow, waiting: waitingRow, history: historyRow, heat: heatRow,
  terms: termRow, ticks: tickRow, audit: auditRow,
};

let lock = null;

function draw(told, changed) {
  lock = told.lock;
  const problem = get("problem");
  problem.hidden = !lock.problem;
  problem.textContent = visible(lock.problem);
  const permits = kind === "semaphore" ? lock.taken + " of " + (lock.value ?? "?") + " permits are held" : "";
  const rate = kind === "ratelimit" && lock.value !== null
    ? [lock.value + " requests are left", lock.kept ? ", the next one in " : "", lock.kept ? until(lock.kept) : ""] : "";
  const known = rate ? el("span", {}, ...rate) : kind === "schedule" && lock.asked !== undefined ? nextTick(lock) : permits;
  get("known").hidden = !known;
  get("known").replaceChildren(known);
  get("waiters").textContent = lock.waiters ? lock.waiters + (lock.waiters === 1 ? " waits" : " wait") : "";
  for (const [section, make] of Object.entries(SECTIONS)) {
    if (changed && !changed.has(section)) continue;
    const found = fill(section, make);
    if (section === "terms" || section === "ticks") get(section).hidden = !found;
  }
  get("history").hidden = !get("ticks").hidden || !get("terms").hidden;
  const stands = rows("holders").length || lock.problem || lock.kept;
  get("release").hidden = !(told.release && stands && told.holdable.includes(kind));
}

const dialog = get("confirm");
let leases = [];

get("release").addEventListener("click", () => {
  leases = rows("holders").map((one) => one.lease);
  get("confirm-holders").replaceChildren(...rows("holders").map((one) => el("li", {}, who(one))));
  dialog.showModal();
  get("cancel").focus();
});
get("cancel").addEventListener("click", () => dialog.close());
get("really").addEventListener("click", async () => {
  dialog.close();
  const outcome = get("outcome");
  outcome.className = "";
  outcome.textContent = "releasing…";
  try {
    const answer = await fetch("release", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Aiolocks-Release": "1" },
      body: JSON.stringify({ kind, name, leases }),
    });
    const told = await answer.json();
    outcome.className = answer.ok ? "good" : "trouble";
    outcome.textContent = answer.ok ? "It was released." : "It was not released: " + visible(told.error);
  } catch {
    outcome.className = "trouble";
    outcome.textContent = "There was no answer: look whether it is still held.";
  }
});

show({ kind, name }, draw);
