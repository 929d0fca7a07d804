// Shows an answer: what to do, how likely it is right, how sure the picture was read, and why.
import { chance, draw, itemPicture, kappaText, labelText, make, percent } from "./dom.js";

export const REASONS = {
  "unclear input": "The image is unclear: blurred, dark or partly hidden. Take a better one.",
  "unlike anything seen": "It is unlike anything seen before: another kind of thing.",
  "crowded neighbourhood": "Two or more labels are about equally near. Look at each of them.",
  "not enrolled": "It is clear enough, but nothing in the gallery is near it: it may not be enrolled.",
  "target not reached":
    "Nothing is wrong with this query; the calibration could not promise its error rate for any.",
};

const VERDICTS = {
  match: ["✓", (top) => `Match: ${top}`, (p) => `This is right with a probability of ${p}.`],
  review: ["?", (top) => `Perhaps ${top}. A person should look.`, (p) => `The nearest answer is right with a probability of ${p}.`],
  no_match: ["✕", () => "Unknown: no match", (p) => `The nearest item is right with a probability of only ${p}. Do not act on it.`],
};

export function showAnswer(result, calibration) {
  const answer = result.answers[0];
  const top = answer.neighbours[0];
  const name = labelText(top.label, top.id);
  if (answer.decision === null) {
    return make(
      "div",
      { class: "answer none" },
      make("p", { class: "verdict" }, make("span", { class: "sign", "aria-hidden": "true" }, "–"), `Nearest: ${name}`),
      make("p", {}, "There is no calibration, so nobody knows how often such an answer is right. Calibrate the gallery to get decisions."),
      make("p", { class: "quiet" }, kappaText(answer.kappa)),
    );
  }
  const [sign, title, odds] = VERDICTS[answer.decision];
  return make(
    "div",
    { class: `answer ${answer.decision}`, "data-decision": answer.decision },
    make("p", { class: "verdict" }, make("span", { class: "sign", "aria-hidden": "true" }, sign), make("span", {}, title(name))),
    make("p", { class: "odds" }, odds(chance(answer.probability))),
    answer.reasons.length ? make("ul", { class: "reasons" }, ...answer.reasons.map((r) => make("li", {}, REASONS[r] ?? r))) : null,
    meter(answer, calibration),
    result.stale ? make("p", { class: "stale" }, "The gallery has changed since it was calibrated, so this decision may be off. Calibrate it again.") : null,
    answer.review ? make("p", { class: "quiet" }, "It waits in the ", make("a", { href: "#review" }, "review queue"), ".") : null,
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

export function showNeighbours(answer, self) {
  return [
    make("h3", {}, answer.decision === "no_match" ? "Nearest items, none of them a match" : "Nearest items"),
    make(
      "ol",
      { class: "grid", id: "found" },
      ...answer.neighbours.map((n, i) =>
        make(
          "li",
          { class: i === 0 && answer.decision === "match" ? "first" : "" },
          itemPicture(n),
          make("strong", {}, labelText(n.label, n.id)),
          make("span", { class: "quiet" }, `${n.id}${n.id === self ? " (the query itself)" : ""}`),
          make("span", { class: "quiet" }, `similarity ${n.score.toFixed(3)}, ${kappaText(n.kappa)}`),
        ),
      ),
    ),
  ];
}
