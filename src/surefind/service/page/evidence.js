// What speaks for an answer: the labels it may have, each with its nearest items.
import { isUnlike } from "./answer.js";
import { chance, itemPicture, labelText, make } from "./dom.js";

const LEAST = 0.02;

// The labels that a query may have, the most probable first, then those of other items that are near; each with its
// items, nearest first. Items without a label are a group too.
export function candidates(answer) {
  const found = new Map(answer.label_probability.map(({ label, probability }) => [label, { label, probability, items: [] }]));
  for (const item of answer.neighbours) {
    if (!found.has(item.label)) found.set(item.label, { label: item.label, probability: null, items: [] });
    found.get(item.label).items.push(item);
  }
  return [...found.values()].filter(({ label, probability, items }) => label === answer.label || items.length || probability >= LEAST);
}

export function showEvidence(answer, self) {
  const none = answer.decision === "no_match" ? [make("p", { class: "none-match" }, "A search always finds something; none of these is a match.")] : [];
  const sections = candidates(answer).map(({ label, probability, items }) => {
    const role = probability === null ? "rest" : label === answer.label ? "answered" : "rival";
    const matched = role === "answered" && answer.decision === "match";
    const title = label === null ? "Near, without a label" : probability === null ? `Also near: ${label}` : `${label}, ${chance(probability)}`;
    const list = make("ol", { class: "grid found" }, ...items.map((item) => itemCard(item, self, matched)));
    return make("section", { "data-role": role }, make("h3", {}, title), items.length ? list : make("p", { class: "quiet" }, "None of its items is among the nearest."));
  });
  return none.concat(isUnlike(answer) ? make("details", {}, make("summary", {}, "Show the nearest items all the same"), ...sections) : sections);
}

const itemCard = (item, self, matched) =>
  make(
    "li",
    { class: matched ? "first" : "", "data-id": item.id },
    itemPicture(item),
    make("strong", {}, labelText(item.label, item.id)),
    make("span", { class: "quiet" }, `${item.id}${item.id === self ? " (the query itself)" : ""}`),
    make("span", { class: "quiet" }, `similarity ${item.score.toFixed(3)}`),
  );
