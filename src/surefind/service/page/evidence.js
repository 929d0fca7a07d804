// What speaks for an answer: the nearest items, by label.
import { isUnlike } from "./answer.js";
import { itemPicture, kappaText, labelText, make } from "./dom.js";

// Items of the answered label first, then those of its strongest rival, then what else is near, label by label.
export function showEvidence(answer, self) {
  const near = new Map(answer.neighbours.map((n) => [n.id, n]));
  const shown = new Set(answer.evidence.flatMap((found) => found.items.map((item) => item.id)));
  const kind = answer.decision === "no_match" ? "Nearest of" : "Evidence for";
  const parts = answer.evidence.map((found, i) => [
    `${kind} ${found.label}${i ? ", its strongest rival" : ""}`,
    i ? "rival" : "answered",
    found.items.map((item) => ({ label: found.label, kappa: near.get(item.id)?.kappa, score: item.cosine, ...item })),
  ]);
  const rest = new Map();
  for (const n of answer.neighbours) if (!shown.has(n.id)) rest.set(n.label, [...(rest.get(n.label) ?? []), n]);
  for (const [label, items] of rest) {
    const own = answer.evidence.findIndex((found) => found.label === label);
    if (own >= 0) parts[own][2].push(...items);
    else parts.push([label === null ? "Near, without a label" : `Also near: ${label}`, "rest", items]);
  }
  const none = answer.decision === "no_match" ? [make("p", { class: "none-match" }, "A search always finds something; none of these is a match.")] : [];
  const sections = parts.map(([title, role, items]) =>
    make(
      "section",
      { "data-role": role },
      make("h3", {}, title),
      make("ol", { class: "grid found" }, ...items.map((item) => itemCard(item, self, role === "answered" && answer.decision === "match"))),
    ),
  );
  return none.concat(isUnlike(answer) ? make("details", {}, make("summary", {}, "Show the nearest items all the same"), ...sections) : sections);
}

function itemCard(item, self, matched) {
  const sure = item.kappa === undefined ? "" : `, ${kappaText(item.kappa)}`;
  return make(
    "li",
    { class: matched ? "first" : "", "data-id": item.id },
    itemPicture(item),
    make("strong", {}, labelText(item.label, item.id)),
    make("span", { class: "quiet" }, `${item.id}${item.id === self ? " (the query itself)" : ""}`),
    make("span", { class: "quiet" }, `similarity ${item.score.toFixed(3)}${sure}`),
  );
}
