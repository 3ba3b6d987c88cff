// The stream of a page: the whole of it once, and then what changes; and clocks that go on in between.

import { duration, visible } from "./text.js";

const state = { facts: {}, sections: {} };
let offset = 0;
let source = null;
let again = 0;
let paused = false;
let address = "";
let render = () => {};

const now = () => Date.now() / 1000 + offset;

/** Shows the page of that query, from now on. */
export function show(query, draw) {
  address = "events?" + new URLSearchParams(query);
  render = draw;
  open();
}

/** The rows of a section, in their order. */
export function rows(name) {
  const section = state.sections[name];
  return section ? section.order.map((id) => section.rows.get(id)).filter(Boolean) : [];
}

function open() {
  if (source) source.close();
  clearTimeout(again);
  if (paused) return;
  source = new EventSource(address);
  source.onmessage = (event) => {
    say("live");
    merge(JSON.parse(event.data));
  };
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) {
      again = setTimeout(() => say("reconnecting"), 3000);
      return;
    }
    say("reconnecting");
    again = setTimeout(open, 3000);
  };
}

function merge(told) {
  offset = told.now - Date.now() / 1000;
  if (told.whole) state.sections = {};
  Object.assign(state.facts, told.facts);
  for (const [name, change] of Object.entries(told.sections)) {
    const section = (state.sections[name] ??= { order: [], rows: new Map() });
    for (const row of change.rows) section.rows.set(row.id, row);
    if (change.order) {
      section.order = change.order;
      const there = new Set(change.order);
      for (const id of section.rows.keys()) if (!there.has(id)) section.rows.delete(id);
    }
  }
  const trouble = document.getElementById("trouble");
  const text = visible(state.facts.trouble ?? "", { json: true }); // the error has escaped it already
  trouble.hidden = !text;
  if (trouble.textContent !== text) trouble.textContent = text;
  render(state.facts, told.whole ? null : new Set(Object.keys(told.sections)));
  tick();
}

function say(what) {
  clearTimeout(again);
  const place = document.getElementById("state");
  if (place.textContent !== what) place.textContent = what;
  document.getElementById("dot").className = "dot " + what;
}

/** Draws the rows of a section: new ones are made, changed ones are filled anew, and each stays an element. */
export function fill(name, make) {
  const section = document.getElementById(name);
  const place = section.querySelector(".rows");
  const found = rows(name);
  const before = new Map([...place.children].map((child) => [child.dataset.id, child]));
  let next = place.firstElementChild;
  for (const row of found) {
    const text = JSON.stringify(row);
    let child = before.get(row.id);
    before.delete(row.id);
    if (!child || child.told !== text) {
      const fresh = make(row);
      fresh.dataset.id = row.id;
      fresh.told = text;
      if (child) {
        const focused = child.contains(document.activeElement);
        if (child === next) next = fresh;
        child.replaceWith(fresh);
        if (focused) fresh.querySelector("a, button")?.focus();
      }
      child = fresh;
    }
    if (child === next) next = next.nextElementSibling;
    else place.insertBefore(child, next);
  }
  for (const child of before.values()) child.remove();
  const none = section.querySelector(".none");
  if (none) none.hidden = found.length > 0;
  return found.length;
}

/** Counts on. */
export function tick() {
  for (const one of document.querySelectorAll(".t")) {
    const seconds = one.dataset.since ? now() - one.dataset.since : one.dataset.until - now();
    const text = duration(seconds);
    if (one.textContent !== text) one.textContent = text;
  }
}

setInterval(() => {
  if (!paused && !document.hidden) tick();
}, 1000);

// Nobody looks at a page that is hidden: its stream ends, and begins again with it.
document.addEventListener("visibilitychange", () => {
  if (!address) return;
  if (document.hidden && source) source.close();
  else open();
});

const pause = document.getElementById("pause");
pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  if (paused) {
    source?.close();
    say("paused");
  } else {
    say("connecting");
    open();
  }
});
