// Review: one query at a time, decided by a key or a button.
import { answerName, labelChances, meter, noveltyScale, oddsText, reasonList } from "./answer.js";
import { $, itemPicture, labelText, make, pictureOf } from "./dom.js";
import { get, post } from "./server.js";

let queue = [];
let at = 0;

export function setUpReview(page) {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if ($("review").hidden || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      a: () => decide(page, "accept"),
      r: () => decide(page, "reject"),
      l: () => openRelabel(),
      ArrowLeft: () => move(page, -1),
      ArrowRight: () => move(page, 1),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

export function showReview(page) {
  return page.attempt(async () => {
    const found = await get("/v1/reviews?limit=200");
    queue = found.pending;
    at = Math.min(at, Math.max(queue.length - 1, 0));
    page.showWaiting(found.total);
    show(page);
  });
}

function show(page) {
  const status = $("review-status");
  if (!queue.length) {
    status.textContent = "Nothing waits for review.";
    $("case").replaceChildren();
    return;
  }
  const entry = queue[at];
  const name = answerName(entry);
  const shown = entry.evidence.length
    ? entry.evidence.map((found) => ({ label: found.label, ...found.items[0] }))
    : entry.neighbours.slice(0, 1);
  const why = entry.sampled ? ", a random check" : "";
  status.textContent = `Query ${at + 1} of ${queue.length}${why}: is it ${name}?`;
  const labels = [...new Set([...entry.label_probability, ...entry.neighbours].map((n) => n.label).filter((label) => label !== null))];
  const off = !page.gallery?.may_write;
  const button = (verdict, words, key, main) =>
    make("button", { type: "button", class: main ? "main" : "", disabled: off, onclick: () => (verdict === "relabel" ? openRelabel() : decide(page, verdict)) }, words, " ", make("kbd", { "aria-hidden": "true" }, key));
  $("case").replaceChildren(
    make(
      "div",
      { class: "card" },
      make(
        "div",
        { class: "case" },
        make(
          "div",
          { class: "pair" },
          make("figure", {}, pictureOf(`/v1/reviews/${entry.id}/image`, "the query", entry.image), make("figcaption", {}, "The query")),
          ...shown.map((item) => make("figure", {}, itemPicture(item), make("figcaption", {}, `Nearest of ${labelText(item.label, item.id)}`))),
        ),
        make(
          "div",
          {},
          entry.decision === null ? null : make("p", {}, oddsText(entry)),
          reasonList(entry),
          labelChances(entry),
          meter(entry, page.calibration),
          noveltyScale(entry, page.calibration),
        ),
      ),
      make(
        "div",
        { class: "actions" },
        button("accept", `Accept: it is ${name}`, "a", true),
        button("reject", "Reject: not in the gallery", "r"),
        button("relabel", "Relabel: it is another", "l"),
        make("button", { type: "button", onclick: () => move(page, -1), disabled: at === 0, "aria-label": "Previous query" }, "←"),
        make("button", { type: "button", onclick: () => move(page, 1), disabled: at === queue.length - 1, "aria-label": "Next query" }, "→"),
      ),
      make(
        "form",
        { id: "relabel", class: "actions", hidden: true, onsubmit: (event) => relabel(event, page, labels) },
        make("label", { for: "label" }, "It is"),
        make("input", { id: "label", list: "labels", autocomplete: "off", required: true, onkeydown: (event) => event.key === "Escape" && ($("relabel").hidden = true) }),
        make("datalist", { id: "labels" }, ...labels.map((label) => make("option", { value: label }))),
        make("button", { class: "main" }, "Keep this label"),
      ),
      entry.sampled ? make("p", { class: "quiet" }, "A random share of all queries is checked, also sure ones, so that a calibration can learn from it.") : null,
      off ? make("p", { class: "quiet" }, "Your token may read but not decide.") : null,
    ),
  );
}

function openRelabel() {
  if (!queue.length) return;
  $("relabel").hidden = false;
  $("label").focus();
}

// A label that looks like a number is one, unless the gallery uses it as a text.
function relabel(event, page, labels) {
  event.preventDefault();
  const text = $("label").value.trim();
  const same = labels.find((label) => String(label) === text);
  const number = /^-?\d{1,15}$/.test(text) ? Number(text) : text;
  decide(page, "relabel", same ?? number);
}

function move(page, step) {
  at = Math.min(Math.max(at + step, 0), Math.max(queue.length - 1, 0));
  show(page);
}

let busy = false;

async function decide(page, verdict, label = null) {
  if (!queue.length || busy) return;
  busy = true;
  await page.attempt(async () => {
    try {
      await post("/v1/reviews", { id: queue[at].id, verdict, label });
    } finally {
      busy = false;
    }
    queue.splice(at, 1);
    at = Math.min(at, Math.max(queue.length - 1, 0));
    page.countReviews();
    show(page);
    const said = { accept: "Accepted", reject: "Rejected", relabel: "Relabelled" }[verdict];
    $("review-status").textContent = `${said}, and kept. ${$("review-status").textContent}`;
  });
}
