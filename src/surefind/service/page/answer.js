// Shows an answer: what to do, how likely it is right, why, and what else it may be.
import { bar, chance, count, labelText, make, percent } from "./dom.js";
import { scales } from "./scales.js";

const REASONS = {
  "unclear input": "The image is unclear: blurred, dark or partly hidden. Take a better one.",
  "unlike anything seen": "It is unlike anything the model was trained on: another kind of thing, or not an image of anything.",
  "unusual input": "It is unusual: few inputs like those of the training are so far from the others. A person should look.",
  "label not tested": "The label is new since the calibration: nobody knows yet how often it is right. A person should look.",
  "labels compete": "Two or more labels compete. Look at each of them.",
  "not enrolled": "It is clear enough, but no label of the gallery is like it: it may not be enrolled.",
  "target not reached":
    "Nothing is wrong with this query; the calibration could not promise its error rate for any.",
};

const VERDICTS = {
  match: ["✓", (name) => `Match: ${name}`],
  review: ["?", (name) => `Perhaps ${name}. A person should look.`],
  no_match: ["✕", () => "Unknown: no match"],
};

// "labels compete: 0.55 a, 0.41 b" is a reason with what competes, which the list of labels shows;
// "unusual input (p = 0.03)" one with a p-value, which its own scale shows.
export const reasonName = (reason) => reason.split(/:| \(p /)[0];
const reasonText = (reason) => REASONS[reasonName(reason)] ?? reason;
const hasReason = (answer, ...names) => answer.reasons.some((reason) => names.includes(reasonName(reason)));

// The gate let it through: probabilities are tested on such inputs alone.
const isUsual = (answer) => !hasReason(answer, "unlike anything seen", "unusual input");

export const isUnlike = (answer) => hasReason(answer, "unlike anything seen");

// How probable the label is, as far as that is known.
export function oddsText(answer) {
  const name = answerName(answer), p = chance(answer.probability);
  const advice = answer.decision === "no_match" ? " Do not act on it." : "";
  if (isUnlike(answer)) return `It is not like anything this gallery knows, so that it is nearest to ${name} means nothing. Do not act on it.`;
  if (!isUsual(answer)) return `Its most probable label is ${name}, but on inputs like this one no probability was tested.${advice}`;
  return advice ? `It is ${name}, the most probable label, with a probability of only ${p}.${advice}` : `It is ${name} with a probability of ${p}.`;
}

// What a decision is worth, to whoever has to act on it, and how unknown queries fared.
function worth(answer, calibration) {
  if (answer.decision !== "match" || !calibration?.calibrated) return null;
  const { max_wrong: wrong, confidence, left_out_queries: asked, left_out_matched: matched } = calibration;
  const tested = asked ? `Of ${count(asked, "query", "queries")} of labels left out, ${matched.toLocaleString("en")} ${matched === 1 ? "was" : "were"} a match.` : "No query of a label left out tested it.";
  return make("p", { class: "worth" }, `Of such answers at most ${percent(wrong, wrong < 0.01 ? 1 : 0)} are wrong, with ${percent(confidence)} confidence, as long as queries are like those it was calibrated with. ${tested}`);
}

// The reasons, each as a chip with its name and a sentence.
export const reasonList = (answer) =>
  answer.reasons.length
    ? make("ul", { class: "reasons" }, ...answer.reasons.map((r) => make("li", {}, make("span", { class: "chip" }, reasonName(r)), ` ${reasonText(r)}`)))
    : null;

// The answered label; where no item has one, the nearest item.
export const answerName = (answer) => labelText(answer.label, answer.neighbours[0]?.id ?? "");

export function showAnswer(result, calibration) {
  const answer = result.answers[0];
  const name = answerName(answer);
  if (answer.decision === null) {
    return make(
      "div",
      { class: "answer none" },
      make("p", { class: "verdict" }, make("span", { class: "sign", "aria-hidden": "true" }, "–"), `${answer.label === null ? "Nearest" : "Most probable"}: ${name}`),
      make("p", {}, "There is no calibration, so nobody knows how often such an answer is right. Calibrate the gallery to get decisions."),
      labelChances(answer),
      ...scales(answer, calibration),
    );
  }
  const [sign, title] = VERDICTS[answer.decision];
  // Beside "unknown" the label's probability would be taken for that of being unknown.
  const large = answer.decision === "no_match" || !isUsual(answer) ? null : make("span", { class: "chance" }, chance(answer.probability).replace("more than ", "> "));
  return make(
    "div",
    { class: `answer ${answer.decision}`, "data-decision": answer.decision },
    make("p", { class: "verdict" }, make("span", { class: "sign", "aria-hidden": "true" }, sign), make("span", {}, title(name)), large),
    make("p", { class: "odds" }, oddsText(answer)),
    worth(answer, calibration),
    reasonList(answer),
    labelChances(answer),
    ...scales(answer, calibration),
    result.stale ? make("p", { class: "stale" }, "The gallery has changed since it was calibrated, so this decision may be off. The calibration is being renewed; ask again in a moment.") : null,
    answer.review ? make("p", { class: "quiet" }, "It waits in the ", make("a", { href: "#review" }, "review queue"), ".") : null,
    answer.dropped ? make("p", { class: "dropped" }, "A person should look at it, but the ", make("a", { href: "#review" }, "review queue"), " is full: it was not kept. Decide some that wait, then ask again.") : null,
  );
}

// The labels it may have, and none of them, as the evidence alone has it.
export function labelChances(answer) {
  const listed = answer.label_probability.filter((found, i) => i === 0 || found.probability >= 0.005);
  if (!listed.length) return null;
  const rest = 1 - answer.none - listed.reduce((sum, found) => sum + found.probability, 0);
  const rows = listed.map((found) => [String(found.label), found.probability, ""]);
  if (rest >= 0.005) rows.push(["other labels", rest, "rest"]);
  rows.push(["none of these", answer.none, "rest"]);
  const list = make("ul", {}, ...rows.map(([name, p, kind]) => make("li", { class: kind }, make("span", { class: "name" }, name), bar(p), make("span", { class: "share" }, chance(p)))));
  // Bars that do not count would still be read first.
  if (isUnlike(answer)) {
    return make("details", { class: "chances" }, make("summary", {}, "What the evidence would say, which does not count"), list);
  }
  return make("figure", { class: "chances" }, make("figcaption", {}, "By the evidence alone, before calibration:"), list);
}
