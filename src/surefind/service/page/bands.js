// Match, review and no match as bands over the threshold: what share of the queries gets which.
import { H, TOP, BOTTOM, across, chart, frame, key, up } from "./axes.js";
import { draw, make, percent } from "./dom.js";

// The shares at a threshold of the risk curve; at none, nothing is a match.
export function shares({ risk_curve: curve, no_match: unknown }, at) {
  const match = at < 0 ? 0 : curve.coverage[at];
  const none = unknown[Math.max(at, 0)];
  return { match, none, review: Math.max(1 - match - none, 0) };
}

// Thresholds crowd near 1, so that the axis is 1 - t, in decades.
const DECADES = 4;
const place = (t) => Math.min(Math.max(-Math.log10(Math.max(1 - t, 10 ** -DECADES)) / DECADES, 0), 1);

export function bands(found) {
  const { thresholds, chosen } = found.risk_curve;
  // From the loosest to the strictest, with nothing a match at the end.
  const order = [...thresholds.keys()].reverse();
  const steps = order.map((i) => [across(place(thresholds[i])), shares(found, i)]);
  const ends = [[across(0), steps[0][1]], ...steps, [across(1), shares(found, -1)]];
  const area = (low, high, kind) => {
    const top = ends.map(([x, s]) => `${x.toFixed(1)} ${up(high(s)).toFixed(1)}`);
    const bottom = ends.map(([x, s]) => `${x.toFixed(1)} ${up(low(s)).toFixed(1)}`).reverse();
    return draw("path", { class: `area ${kind}`, d: `M${[...top, ...bottom].join("L")}Z` });
  };
  const now = chosen === null ? null : across(place(thresholds[chosen]));
  const ticks = [[0, "0"], [0.25, "0.9"], [0.5, "0.99"], [0.75, "0.999"], [1, "1"]];
  const used = shares(found, chosen ?? -1);
  return chart(
    "Match, review and no match",
    `At the threshold in use ${percent(used.match)} match, ${percent(used.review)} review, ${percent(used.none)} no match`,
    "bands",
    [
      area(() => 0, (s) => s.match, "match"),
      area((s) => s.match, (s) => s.match + s.review, "review"),
      area((s) => s.match + s.review, () => 1, "no_match"),
      ...frame("least probability of a match", (share) => percent(share), ticks),
      now === null ? null : draw("line", { class: "here", x1: now, x2: now, y1: TOP, y2: H - BOTTOM }),
    ],
    make("p", { class: "quiet" }, key("match"), " match ", key("review"), " a person looks ", key("no_match"), ` no match, of the queries that tested it. ${now === null ? "No threshold is in use." : `Line, the threshold in use: ${percent(used.match, 1)}, ${percent(used.review, 1)} and ${percent(used.none, 1)}.`}`),
  );
}
