// Review: the queue, one query at a time, decided by a key or a button; with filters, progress and a history.
import { caseCard, question } from "./case.js";
import { $, count, make } from "./dom.js";
import { showHistory } from "./history.js";
import { get, post, remove } from "./server.js";

const SIZE = 50;
const MOST = 200;
const NAME = "surefind-reviewer";
const RANDOM = "a random check";

let queue = [];
let at = 0;
let found = { total: 0, matching: 0, dropped: 0, room: 0, reasons: {} };
let reach = SIZE;
let skipped = new Set();
let decided = [];

export function setUpReview(page) {
  $("reviewer").value = localStorage.getItem(NAME) ?? "";
  $("reviewer").addEventListener("change", () => localStorage.setItem(NAME, $("reviewer").value.trim()));
  for (const id of ["why", "odds"]) $(id).addEventListener("change", () => {
    skipped = new Set();
    [at, reach] = [0, SIZE];
    showReview(page);
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, dialog");
    if ($("review").hidden || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const press = (number) => () => document.querySelector(`#case button[data-number="${number}"]`)?.click();
    const act = {
      a: () => decide(page, "accept"),
      r: () => decide(page, "reject"),
      l: () => $("label")?.focus(),
      s: () => skip(page),
      u: () => undo(page),
      ArrowLeft: () => move(page, -1),
      ArrowRight: () => move(page, 1),
    }[event.key] ?? (/^\d$/.test(event.key) ? press(event.key) : null);
    if (!act) return;
    event.preventDefault();
    act();
  });
}

export function showReview(page) {
  return page.attempt(async () => {
    await load(page);
    show(page);
    await refreshHistory(page);
  });
}

const refreshHistory = (page) => showHistory(page, (id) => undo(page, id));

// What the filters let through, from the start, without what was skipped.
async function load(page) {
  const [least, most] = $("odds").value.split(",");
  const why = $("why").value;
  const filter = why === RANDOM ? "&sampled=true" : why ? `&reason=${encodeURIComponent(why)}` : "";
  found = await get(`/v1/reviews?limit=${Math.min(reach + skipped.size, MOST)}&least=${least}&most=${most}${filter}`);
  queue = found.pending.filter(({ id }) => !skipped.has(id));
  if (!queue.length && found.pending.length) {
    skipped = new Set();
    queue = found.pending;
  }
  at = Math.min(at, Math.max(queue.length - 1, 0));
  page.showWaiting(found.total);
  describeReasons();
}

function describeReasons() {
  const chosen = $("why").value;
  const names = new Set([...Object.keys(found.reasons), ...(chosen && chosen !== RANDOM ? [chosen] : [])]);
  $("why").replaceChildren(
    make("option", { value: "" }, "any reason"),
    make("option", { value: RANDOM }, RANDOM),
    ...[...names].sort().map((name) => make("option", { value: name }, `${name} (${found.reasons[name] ?? 0})`)),
  );
  $("why").value = chosen;
}

function show(page, said = "") {
  const waits = queue.length ? `Query ${at + 1} of ${found.matching.toLocaleString("en")}${queue[at].sampled ? `, ${RANDOM}` : ""}: ${question(queue[at])}` : found.total ? "Nothing that waits passes the filters." : "Nothing waits for review.";
  $("review-status").textContent = `${said} ${waits}`.trim();
  $("progress").replaceChildren(...progress(page));
  if (!queue.length) {
    $("case").replaceChildren();
    return;
  }
  $("case").replaceChildren(
    caseCard(page, queue[at], {
      decide: (verdict, label) => decide(page, verdict, label),
      skip: () => skip(page),
      move: (step) => move(page, step),
      first: at === 0,
      last: at === queue.length - 1 && queue.length === Math.min(found.matching, MOST),
    }),
  );
}

function progress(page) {
  const done = decided.length, all = done + found.total;
  const parts = [];
  if (all) parts.push(make("progress", { max: all, value: done, "aria-label": "Decided in this tab" }));
  parts.push(
    make("p", { class: "quiet" }, `${done.toLocaleString("en")} decided in this tab, ${found.total.toLocaleString("en")} ${found.total === 1 ? "waits" : "wait"}${skipped.size ? `, ${skipped.size} skipped` : ""}. `, make("span", { class: "keys" }, "Keys: ", ...keys())),
    make("button", { type: "button", id: "undo", disabled: !done || !page.gallery.may_write, onclick: () => undo(page) }, "Undo ", make("kbd", { "aria-hidden": "true" }, "u")),
  );
  if (found.dropped) {
    parts.push(make("p", { class: "dropped" }, `${count(found.dropped, "query was", "queries were")} not kept since the service was started, because so many waited already. ${found.room ? `There is room for ${found.room.toLocaleString("en")} again.` : "There is still no room: decide some."}`));
  }
  return parts;
}

function keys() {
  const key = (name) => make("kbd", {}, name);
  return [key("1"), " to ", key("9"), " a label, ", key("0"), " none, ", key("l"), " another label, ", key("s"), " skip, ", key("u"), " undo, ", key("←"), " ", key("→"), " move."];
}

// One step after the other: a step that must fetch more would lose those that are taken meanwhile.
let moving = Promise.resolve();

function move(page, step) {
  moving = moving.then(() => go(page, step));
}

async function go(page, step) {
  if (at + step >= queue.length && queue.length < found.matching && reach < MOST) {
    reach += SIZE;
    await page.attempt(() => load(page));
  }
  at = Math.min(Math.max(at + step, 0), Math.max(queue.length - 1, 0));
  show(page);
}

// It comes again when all others are done.
function skip(page) {
  if (!queue.length) return;
  skipped.add(queue[at].id);
  page.attempt(async () => {
    await load(page);
    show(page, "Skipped.");
  });
}

let busy = false;

async function decide(page, verdict, label = null) {
  if (!queue.length || busy || !page.gallery.may_write) return;
  busy = true;
  await page.attempt(async () => {
    try {
      const { id } = queue[at];
      await post("/v1/reviews", { id, verdict, label, reviewer: $("reviewer").value.trim() || null });
      decided.push(id);
    } finally {
      busy = false;
    }
    await load(page);
    const said = { accept: "Accepted", reject: "Rejected", relabel: "Relabelled" }[verdict];
    show(page, `${said}, and kept.`);
    refreshHistory(page);
  });
}

function undo(page, id = decided.at(-1)) {
  if (id === undefined || !page.gallery.may_write) return;
  page.attempt(async () => {
    await remove(`/v1/reviews/${encodeURIComponent(id)}/decision`);
    decided = decided.filter((other) => other !== id);
    skipped.delete(id);
    await load(page);
    at = Math.max(queue.findIndex((entry) => entry.id === id), 0);
    show(page, "Taken back.");
    refreshHistory(page);
  });
}
