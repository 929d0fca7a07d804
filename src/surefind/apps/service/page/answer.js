// Shows an answer: what to do, how likely it is right, why, what else it may be, and what speaks for it.
import { chance, draw, itemPicture, kappaText, labelText, make, noveltyText, percent } from "./dom.js";

const REASONS = {
  "unclear input": "The image is unclear: blurred, dark or partly hidden. Take a better one.",
  "unlike anything seen": "It is unlike anything the model was trained on: another kind of thing. What its neighbours say does not count.",
  "unusual input": "It is unusual: few inputs like those of the training are so far from the others. A person should look.",
  "split neighbourhood": "Two or more labels compete. Look at each of them.",
  "not enrolled": "It is clear enough, but nothing in the gallery is near it: it may not be enrolled.",
  "target not reached":
    "Nothing is wrong with this query; the calibration could not promise its error rate for any.",
};

const VERDICTS = {
  match: ["✓", (name) => `Match: ${name}`],
  review: ["?", (name) => `Perhaps ${name}. A person should look.`],
  no_match: ["✕", () => "Unknown: no match"],
};

// "split neighbourhood: 0.55 a, 0.41 b" is a reason with what competes, which the list of labels shows;
// "unusual input (p = 0.03)" one with a p-value, which its own scale shows.
const reasonName = (reason) => reason.split(/:| \(p /)[0];
const reasonText = (reason) => REASONS[reasonName(reason)] ?? reason;

// The gate let it through: probabilities are tested on such inputs alone.
const isUsual = (answer) => !answer.reasons.some((reason) => ["unlike anything seen", "unusual input"].includes(reasonName(reason)));

// How probable the label is, as far as that is known.
export function oddsText(answer) {
  const name = answerName(answer), p = chance(answer.probability);
  const advice = answer.decision === "no_match" ? " Do not act on it." : "";
  if (!isUsual(answer)) return `Its most probable label is ${name}, but on inputs like this one no probability was tested.${advice}`;
  return advice ? `It is ${name}, the most probable label, with a probability of only ${p}.${advice}` : `It is ${name} with a probability of ${p}.`;
}

// The reasons, each as a chip with its name and a sentence.
export const reasonList = (answer) =>
  answer.reasons.length
    ? make("ul", { class: "reasons" }, ...answer.reasons.map((r) => make("li", {}, make("span", { class: "chip" }, reasonName(r)), ` ${reasonText(r)}`)))
    : null;

// The answered label; where no neighbour has one, the nearest item.
export const answerName = (answer) => labelText(answer.label, answer.neighbours[0].id);

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
      make("p", { class: "quiet" }, kappaText(answer.kappa)),
      noveltyScale(answer, calibration),
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
    reasonList(answer),
    labelChances(answer),
    meter(answer, calibration),
    noveltyScale(answer, calibration),
    result.stale ? make("p", { class: "stale" }, "The gallery has changed since it was calibrated, so this decision may be off. The calibration is being renewed; ask again in a moment.") : null,
    answer.review ? make("p", { class: "quiet" }, "It waits in the ", make("a", { href: "#review" }, "review queue"), ".") : null,
  );
}

// The labels it may have, and none of them, as the neighbourhood alone has it.
export function labelChances(answer) {
  const listed = answer.label_probability.filter((found, i) => i === 0 || found.probability >= 0.005);
  if (!listed.length) return null;
  const rest = 1 - answer.none - listed.reduce((sum, found) => sum + found.probability, 0);
  const rows = listed.map((found) => [String(found.label), found.probability, ""]);
  if (rest >= 0.005) rows.push(["other labels", rest, "rest"]);
  rows.push(["none of these", answer.none, "rest"]);
  return make(
    "figure",
    { class: "chances" },
    make("figcaption", {}, "By its neighbours alone, before calibration:"),
    make(
      "ul",
      {},
      ...rows.map(([name, p, kind]) =>
        make(
          "li",
          { class: kind },
          make("span", { class: "name" }, name),
          draw("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, draw("rect", { width: 100, height: 10, class: "room" }), draw("rect", { width: Math.max(100 * p, 0.5), height: 10, class: "share" })),
          make("span", { class: "share" }, chance(p)),
        ),
      ),
    ),
  );
}

// How sure the query is, against how sure the calibration's queries were.
export function meter(answer, calibration) {
  const quantiles = calibration?.log_kappa_quantiles;
  if (!quantiles || answer.kappa === null) return make("p", { class: "quiet" }, kappaText(answer.kappa));
  const low = quantiles[0], high = quantiles[quantiles.length - 1];
  const width = 400, height = 44, spread = Math.max(high - low, 1e-9);
  const x = (value) => Math.min(Math.max((value - low) / spread, -0.04), 1.04) * width;
  const bins = new Array(24).fill(0);
  for (const q of quantiles) bins[Math.min(23, Math.floor((24 * (q - low)) / spread))] += 1;
  const most = Math.max(...bins);
  const bars = bins.map((n, i) =>
    draw("rect", { class: "area", x: (i * width) / 24 + 0.5, width: width / 24 - 1, y: height - (n / most) * height, height: (n / most) * height }),
  );
  const here = x(Math.log(Math.max(answer.kappa, 1e-300)));
  const words = `${kappaText(answer.kappa)}: surer than ${percent(answer.surer_than)} of the calibration's queries`;
  return make(
    "figure",
    { class: "meter" },
    draw(
      "svg",
      { viewBox: `-10 0 ${width + 20} 66`, role: "img", preserveAspectRatio: "xMinYMid", "aria-label": words },
      ...bars,
      draw("line", { class: "line", x1: 0, x2: width, y1: height, y2: height }),
      draw("line", { class: "needle", x1: here, x2: here, y1: 0, y2: height + 5 }),
      draw("text", { x: 0, y: 62 }, "unsure"),
      draw("text", { x: width, y: 62, "text-anchor": "end" }, "sure"),
    ),
    make("figcaption", {}, `${words}.`),
  );
}

// How unusual the input is: its p-value on a log scale from 1 down to 0.0001, with the marks of the gate.
export function noveltyScale(answer, calibration) {
  if (answer.novelty === null || answer.novelty === undefined) return null;
  const width = 400, height = 14, alarms = calibration?.max_false_alarms ?? null;
  const x = (p) => (Math.min(-Math.log10(Math.max(p, 1e-5)), 4.1) / 4) * width;
  const marks = alarms === null ? [] : [alarms, 10 * alarms];
  const zones = alarms === null
    ? [draw("rect", { class: "area", x: 0, width, y: 0, height })]
    : [
        draw("rect", { class: "area", x: 0, width: x(10 * alarms), y: 0, height }),
        draw("rect", { class: "unusual", x: x(10 * alarms), width: x(alarms) - x(10 * alarms), y: 0, height }),
        draw("rect", { class: "unlike", x: x(alarms), width: Math.max(width - x(alarms), 0), y: 0, height }),
      ];
  const zone = alarms === null ? "" : answer.novelty <= alarms ? ", unlike anything seen" : answer.novelty <= 10 * alarms ? ", unusual" : ", like what was trained on";
  const words = `Novelty ${noveltyText(answer.novelty)}${zone}`;
  const here = x(answer.novelty);
  return make(
    "figure",
    { class: "meter novelty" },
    draw(
      "svg",
      { viewBox: `-10 0 ${width + 30} 36`, role: "img", preserveAspectRatio: "xMinYMid", "aria-label": words },
      ...zones,
      ...marks.flatMap((p) => [
        draw("line", { class: "mark", x1: x(p), x2: x(p), y1: 0, y2: height + 4 }),
        draw("text", { x: x(p), y: 32, "text-anchor": "middle" }, String(Number(p.toPrecision(2)))),
      ]),
      draw("line", { class: "needle", x1: here, x2: here, y1: -3, y2: height + 5 }),
      draw("text", { x: 0, y: 32 }, "usual"),
      draw("text", { x: width, y: 32, "text-anchor": "end" }, "never seen"),
    ),
    make("figcaption", {}, `${words}.`),
  );
}

// Items of the answered label first, then those of its strongest rival, then what else is near.
export function showEvidence(answer, self) {
  const near = new Map(answer.neighbours.map((n) => [n.id, n]));
  const shown = new Set(answer.evidence.flatMap((found) => found.items.map((item) => item.id)));
  const rest = answer.neighbours.filter((n) => !shown.has(n.id));
  const kind = answer.decision === "no_match" ? "Nearest of" : "Evidence for";
  const parts = answer.evidence.map((found, i) => [
    `${kind} ${found.label}${i ? ", its strongest rival" : ""}`,
    i ? "rival" : "answered",
    found.items.map((item) => ({ label: found.label, kappa: near.get(item.id)?.kappa, score: item.cosine, ...item })),
  ]);
  if (rest.length) parts.push([parts.length ? "Other near items" : "Nearest items", "rest", rest]);
  const none = answer.decision === "no_match" ? [make("p", { class: "none-match" }, "A search always finds something; none of these is a match.")] : [];
  return none.concat(
    parts.map(([title, role, items]) =>
      make(
        "section",
        { "data-role": role },
        make("h3", {}, title),
        make("ol", { class: "grid found" }, ...items.map((item) => itemCard(item, self, role === "answered" && answer.decision === "match"))),
      ),
    ),
  );
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
