// The overview.

import { documentOf, el, duration, foreign, link, moment, nextTick, several, since, strip, until, visible, who } from "./text.js";
import { fill, rows, show, tick } from "./live.js";

const STEP = matchMedia("(max-width: 700px)").matches ? 20 : 50;
const MOST = 200;
const text = document.getElementById("text");
const kind = document.getElementById("kind");
const sort = document.getElementById("sort");
const more = document.getElementById("more");
let shown = STEP;

const cell = (label, ...children) => el("td", { role: "cell", "data-label": label }, ...children);
const number = (label, ...children) => el("td", { role: "cell", "data-label": label, class: "n" }, ...children);

function lockRow(row) {
  const first = row.holders[0];
  const permits = row.kind === "semaphore" ? row.taken + " of " + (row.value ?? "?") : "";
  const kept = row.kind === "ratelimit" ? "taken" : "kept by at_least";
  const left = row.kind === "ratelimit" && row.value !== null ? row.value + " left" : "";
  const details = first ? [first.mode, first.span, first.keys, permits].filter(Boolean).map(visible).join(" ") : left;
  const held = row.kept && !first ? el("span", { class: "muted" }, kept) : several(row.holders, row.more);
  const charged = row.holders.reduce((sum, one) => sum + one.charged, 0);
  return el(
    "tr",
    { role: "row", class: row.problem ? "bad" : row.waiters && row.kind !== "leadership" ? "busy" : "" },
    el("th", { role: "rowheader", scope: "row" }, link(row.kind, row.name, Infinity),
      row.problem ? el("span", { class: "problem" }, "! " + visible(row.problem)) : ""),
    cell("Kind", visible(row.kind)),
    cell("Holder", held, details ? el("span", { class: "muted" }, " " + details) : ""),
    number("Held", first ? since(first.since) : "–"),
    number("Left", first ? until(first.until) : until(row.kept)),
    number("Waiting", row.waiters ? el("strong", {}, String(row.waiters)) : "0"),
    number("Waited for", charged ? duration(charged) : "–"),
  );
}

function waitRow(row) {
  return el("li", {},
    el("p", {}, who(row), " waits ", el("strong", {}, since(row.since)), " for ", link(row.kind, row.name)),
    el("p", { class: "muted" }, "place " + row.place + ", held by ", several(row.holders, row.more)));
}

function chargeRow(row) {
  return el("li", { class: "split" },
    el("span", {}, who(row), row.holds ? " holds " : " held ", link(row.kind, row.name)),
    el("strong", {}, duration(row.charged)));
}

function heatRow(row) {
  return el("li", {},
    el("p", { class: "split" }, link(row.kind, row.name), el("strong", {}, duration(row.total))),
    strip(row.levels, row.total));
}

function oldRow(row) {
  const first = row.holders[0];
  return el("li", { class: "split" },
    el("span", {}, link(row.kind, row.name), " ", el("span", { class: "muted" }, several(row.holders, row.more))),
    el("strong", {}, first ? since(first.since) : "–"));
}

function leaderRow(row) {
  const value = row.value ? el("p", { class: "muted value" }, documentOf(row.value)) : "";
  const candidates = row.candidates === 1 ? "1 candidate waits" : row.candidates + " candidates wait";
  return el("li", {},
    el("p", { class: "split" }, el("span", {}, link(row.kind, row.name), " ",
      row.leader ? who(row.leader) : el("strong", {}, "nobody leads")),
      row.leader ? el("strong", {}, since(row.leader.since)) : ""),
    value, el("p", { class: "muted" }, candidates));
}

const SIGNS = { done: "✓", running: "▸", failed: "✗", timeout: "◷", stopped: "■", lost: "?", skipped: "·", missed: "–" };

function scheduleRow(row) {
  const last = row.last;
  const signs = row.ticks.map((one) => el("i", { class: "tick " + one }, SIGNS[one] ?? "?"));
  const counts = Object.entries(row.ticks.reduce((sums, one) => ({ ...sums, [one]: (sums[one] ?? 0) + 1 }), {}));
  const label = "last runs: " + counts.map(([outcome, times]) => times + " " + outcome).join(", ");
  const next = el("p", { class: "muted" }, nextTick(row));
  if (!last) return el("li", {}, el("p", { class: "split" }, link(row.kind, row.name), el("span", {}, "not run yet")), next);
  const took = last.seconds === null ? "" : ", took " + duration(last.seconds);
  return el("li", {},
    el("p", { class: "split" }, link(row.kind, row.name), el("strong", { class: "outcome " + last.outcome }, last.outcome)),
    el("p", { class: "muted" }, last.due === null ? "out of turn at " + moment(last.since) : "due " + moment(last.due), took,
      last.host ? " on " : "", last.host ? who(last) : ""),
    el("p", { class: "ticks", role: "img", "aria-label": label }, ...signs), next);
}

function auditRow(row) {
  return el("li", {},
    el("p", { class: "split" }, el("span", {}, link(row.kind, row.name), " ", row.outcome), el("span", {}, moment(row.at))),
    el("p", { class: "muted" }, "by ", foreign(row.by)));
}

function deadlockRow(row) {
  const tasks = row.tasks.map((one) =>
    el("li", {}, who(one), " holds ", ...one.holds.flatMap(([kind, name], at) => [at ? ", " : "", link(kind.split(".")[0], name)]),
      " and waits ", since(one.since), " for ", link(one.kind.split(".")[0], one.name)));
  return el("ol", { class: "list" }, ...tasks);
}

const SECTIONS = {
  locks: lockRow, waits: waitRow, charges: chargeRow, heat: heatRow, oldest: oldRow,
  leaders: leaderRow, schedules: scheduleRow, audit: auditRow, deadlocks: deadlockRow,
};

function showTotals(totals) {
  for (const place of document.querySelectorAll("[data-total]")) {
    place.textContent = totals[place.dataset.total].toLocaleString("en");
  }
  document.getElementById("found").className = totals.deadlocks ? "alarm" : "";
  const sampled = document.getElementById("sampled");
  sampled.hidden = totals.read >= totals.names;
  sampled.textContent = "Of these names, " + totals.read.toLocaleString("en") + " have been read so far.";
}

function draw(facts, changed) {
  const prefix = document.getElementById("prefix");
  prefix.textContent = visible(facts.prefix);
  document.title = "Locks of " + visible(facts.prefix);
  if (kind.options.length === 1) for (const one of facts.kinds) kind.append(el("option", { value: one }, one));
  if (facts.totals) showTotals({ ...facts.totals, deadlocks: rows("deadlocks").length });
  for (const [name, make] of Object.entries(SECTIONS)) if (!changed || changed.has(name)) {
    const found = fill(name, make);
    if (name === "deadlocks") document.getElementById(name).hidden = !found;
    if (name === "locks") {
      const matching = facts.matching ?? found;
      const asked = text.value || kind.value;
      document.querySelector("#locks .none").textContent =
        asked ? "no name that is held or waited for matches" : "nothing is held or waited for";
      document.getElementById("matching").textContent = found < matching ? found + " of " + matching.toLocaleString("en") : "";
      more.hidden = found >= matching || shown >= MOST;
    }
  }
}

function ask() {
  const query = {};
  if (text.value) query.text = text.value;
  if (kind.value) query.kind = kind.value;
  query.sort = sort.value;
  query.rows = shown;
  show(query, draw);
}

let typing = 0;
text.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => { shown = STEP; ask(); }, 250);
});
for (const choice of [kind, sort]) choice.addEventListener("change", () => { shown = STEP; ask(); });
more.addEventListener("click", () => { shown = Math.min(MOST, shown + STEP); ask(); });
document.getElementById("search").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  const typed = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName);
  if (event.key === "/" && !typed && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    text.focus();
  }
});

ask();
tick();
