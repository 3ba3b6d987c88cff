// Texts that others have written are shown, and never become anything but text.

const UNSEEN = /[\p{C}\p{Zl}\p{Zp}\\]|(?! )\p{Zs}/gu;

/** The text, with everything escaped that would not just be seen: control characters, marks of direction. */
export function visible(text, { json = false } = {}) {
  return String(text).replace(UNSEEN, (letter) => {
    if (letter === "\\") return json ? letter : "\\\\"; // JSON has its own escapes
    const code = letter.codePointAt(0);
    if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
    if (code < 0x10000) return "\\u" + code.toString(16).padStart(4, "0");
    return "\\u{" + code.toString(16) + "}";
  });
}

/** An element; children are elements, or texts. */
export function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** A text of somebody else, apart from what stands around it. */
export function foreign(text, options = {}) {
  return el("bdi", options, visible(text));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, seconds);
  if (s < 10) return s.toFixed(1) + " s";
  if (s < 60) return Math.floor(s) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

/** A moment of the server's clock, in the time zone of the reader. */
export function moment(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const date = new Date(seconds * 1000);
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return today ? time : date.toLocaleDateString() + " " + time;
}

/** Time since a moment, or until it, that is counted on. */
export function since(at) {
  return at === null || at === undefined ? "–" : el("span", { class: "t", "data-since": at });
}
export function until(at) {
  return at === null || at === undefined ? "–" : el("span", { class: "t", "data-until": at });
}

export function who(one, { task = true } = {}) {
  if (!one || (one.host === null && one.pid === null)) return el("span", { class: "muted" }, "unknown");
  const parts = [foreign(one.host ?? "?", { class: "host" })];
  if (one.pid !== null) parts.push(el("span", { class: "muted" }, " pid " + one.pid));
  if (task && one.task) parts.push(" ", foreign(one.task, { class: "muted" }));
  return el("span", { class: "who" }, ...parts);
}

/** When the next tick of a schedule is due. */
export function nextTick(row) {
  if (!row.asked) return "no process keeps it";
  if (row.next === null || row.next === undefined) return "a process keeps it";
  return el("span", {}, "next tick " + moment(row.next) + ", in ", until(row.next));
}

/** Several of them, of which some are not named. */
export function several(holders, more) {
  if (!holders.length) return el("span", { class: "muted" }, "nobody");
  const parts = holders.flatMap((one, at) => (at ? [", ", who(one)] : [who(one)]));
  if (more) parts.push(" and " + more + " more");
  return el("span", {}, ...parts);
}

/** A link to the page of a name, of which so many characters are shown. */
export function link(kind, name, most = 80) {
  const query = new URLSearchParams({ kind, name });
  const letters = [...name];
  const shown = letters.length > most ? letters.slice(0, most).join("") : name;
  const rest = shown === name ? "" : "…";
  return el("a", { href: "name?" + query, class: "name", title: visible(name) }, foreign(shown), rest);
}

/** JSON, which others have made. */
export function documentOf(text) {
  return el("bdi", {}, visible(text, { json: true }));
}

const MOST = ["none", "under 1 s", "under 6 s", "under 30 s", "under 1 min", "under 5 min", "over 5 min"];

/** The last hour, a cell for each minute. */
export function strip(levels, total) {
  const cells = [...levels].map((level) => el("i", { class: level === "-" ? "hx" : "h" + level }));
  const most = Math.max(0, ...[...levels].filter((level) => level !== "-").map(Number));
  const label = "waited " + duration(total) + " in the last hour; in a minute at most " + MOST[most];
  return el("span", { class: "strip", role: "img", "aria-label": label }, ...cells);
}
