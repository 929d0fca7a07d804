// One query that waits: large, beside a card for each label it may have.
import { answerName, oddsText, reasonList } from "./answer.js";
import { bar, chance, count, itemPicture, labelText, make, pictureOf, timeText } from "./dom.js";
import { candidates } from "./evidence.js";
import { labelForm } from "./labels.js";
import { scales } from "./scales.js";
import { zoomable } from "./zoom.js";

const MOST_LABELS = 9;
const SHOWN = 3;

// `decide(verdict, label)` and `skip()` do what their buttons say.
export function caseCard(page, entry, { decide, skip, move, first, last }) {
  const off = !page.gallery.may_write;
  const named = candidates(entry).filter(({ label }) => label !== null);
  const cards = named.slice(0, MOST_LABELS).map((found, i) => labelCard(entry, found, i + 1, off, decide));
  cards.push(noneCard(entry, off, decide));
  return make(
    "div",
    { class: "case" },
    make(
      "div",
      { class: "asked" },
      zoomable(pictureOf(`/v1/reviews/${entry.id}/image`, "the query", entry.image), "the query"),
      make("p", { class: "quiet" }, asked(entry)),
    ),
    make(
      "div",
      { class: "why" },
      entry.decision === null ? null : make("p", {}, oddsText(entry)),
      reasonList(entry),
      ...scales(entry, page.calibration),
    ),
    make(
      "div",
      { class: "choices" },
      make("h3", {}, "What is it?"),
      make("ol", { class: "labels" }, ...cards),
      off ? make("p", { class: "quiet" }, "Your token may read but not decide.") : labelForm(page, {
        id: "label",
        words: "Another label",
        button: "It is this",
        chosen: (label) => decide(label === entry.label ? "accept" : "relabel", label),
        away: "Say “none of these”, or add an item with the label first.",
      }),
      make(
        "p",
        { class: "actions" },
        make("button", { type: "button", onclick: () => move(-1), disabled: first, "aria-label": "Previous query" }, "←"),
        make("button", { type: "button", onclick: () => move(1), disabled: last, "aria-label": "Next query" }, "→"),
        make("button", { type: "button", onclick: skip, disabled: last && first }, "Skip ", key("s")),
      ),
      neighbours(entry),
    ),
  );
}

const key = (name) => make("kbd", { "aria-hidden": "true" }, name);

function asked(entry) {
  const times = entry.count > 1 ? `, asked ${count(entry.count, "time")}` : "";
  const check = entry.sampled ? ". A random check: a share of all queries is checked, also sure ones, so that a calibration can learn from it" : "";
  return `From ${timeText(entry.when)}${times}${check}.`;
}

function labelCard(entry, { label, probability, items }, number, off, decide) {
  const answered = label === entry.label;
  const button = make(
    "button",
    { type: "button", disabled: off, class: answered ? "main" : "", "data-number": number, onclick: () => decide(answered ? "accept" : "relabel", answered ? null : label) },
    key(number),
    ` ${answered ? "Yes, " : ""}it is ${label}`,
  );
  return make(
    "li",
    { class: "card" },
    make("p", { class: "share" }, make("strong", {}, String(label)), ...(probability === null ? [] : [bar(probability), chance(probability)])),
    make("div", { class: "row" }, ...items.slice(0, SHOWN).map((item) => zoomable(itemPicture(item), `${label}, ${item.id}`))),
    items.length ? null : make("p", { class: "quiet" }, "No item of it is near."),
    button,
  );
}

function noneCard(entry, off, decide) {
  return make(
    "li",
    { class: "card none" },
    make("p", { class: "share" }, make("strong", {}, "None"), bar(entry.none), chance(entry.none)),
    make("button", { type: "button", disabled: off, "data-number": 0, onclick: () => decide("reject") }, key("0"), " It is none of these"),
  );
}

function neighbours(entry) {
  const items = entry.neighbours.map((item) =>
    make("li", {}, itemPicture(item), make("strong", {}, labelText(item.label, item.id)), make("span", { class: "quiet" }, `${item.id}, similarity ${item.score.toFixed(3)}`)),
  );
  return make("details", {}, make("summary", {}, `All ${count(items.length, "neighbour")}`), make("ol", { class: "grid" }, ...items));
}

export const question = (entry) => `is it ${answerName(entry)}?`;
