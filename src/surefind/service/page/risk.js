// Risk: what is promised, what it costs, and how unknown queries fare; the share that is answered for the wrong
// matches one is ready to take; and whether queries are still like the calibration's.
import { LEFT, RIGHT, W, across, ceiling, chart, frame, key, up } from "./axes.js";
import { $, draw, make, percent, tile } from "./dom.js";
import { errorRates } from "./rates.js";
import { calibrationFromItems, recalibration, snapshots } from "./recalibrate.js";
import { get } from "./server.js";
import { drift, freshness } from "./watch.js";

export function promised({ threshold, max_wrong: wrong, confidence }) {
  const share = percent(wrong, wrong < 0.01 ? 1 : 0);
  return threshold === null ? tile("not reached", `${share} wrong matches at most`) : tile(`≤ ${share}`, `wrong matches, with ${percent(confidence)} confidence`);
}

function figures(found) {
  const { risk_curve: curve, left_out_queries: asked, left_out_matched: matched } = found;
  const answered = curve.chosen === null ? 0 : curve.coverage[curve.chosen];
  return make(
    "dl",
    { class: "tiles" },
    promised(found),
    tile(percent(answered, 1), "of the queries answered as a match"),
    asked ? tile(percent(matched / asked, 1), `unknown matched: ${matched.toLocaleString("en")} of ${asked.toLocaleString("en")}, label left out`) : tile("not tested", "unknown matched"),
  );
}

export function showRisk(page) {
  const found = page.calibration;
  if (!found?.calibrated) {
    $("risk-body").replaceChildren(
      make("p", { class: "card" }, "There is no calibration yet, so the risk is not known. Calibrate the gallery with held-out queries first."),
      ...upkeep(page),
    );
    return;
  }
  const { coverage, wrong_rate: rate, upper_bound: bound, thresholds } = found.risk_curve;
  const top = ceiling(Math.max(Math.min(1, Math.max(...bound.filter((_, i) => coverage[i] > 0.05), found.max_wrong)), 1e-6));
  const y = (risk) => up(risk / top);
  const path = (values) => values.map((v, i) => `${i ? "L" : "M"}${across(coverage[i]).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  const mark = draw("g", {});
  const said = make("p", { class: "big", id: "risk-said", role: "status" });
  const value = make("output", { for: "taken" });
  const slider = make("input", { type: "range", id: "taken", min: 0, max: 1000, value: Math.round((1000 * found.max_wrong) / top) });

  const update = () => {
    const taken = (slider.value / 1000) * top;
    slider.setAttribute("aria-valuetext", percent(taken, 1));
    value.textContent = percent(taken, 1);
    // The loosest threshold whose bound stays within the risk.
    let best = -1;
    bound.forEach((value, i) => value <= taken && (best = i));
    mark.replaceChildren(draw("line", { class: "here", x1: LEFT, x2: W - RIGHT, y1: y(taken), y2: y(taken) }));
    if (best >= 0) mark.append(draw("circle", { cx: across(coverage[best]), cy: y(bound[best]), r: 5 }));
    const gives = best < 0 ? "no threshold can promise this; nothing is a match" : `${percent(coverage[best], 1)} of the queries are a match, from a probability of ${thresholds[best].toFixed(3)} up`;
    said.textContent = `At most ${percent(taken, 1)} wrong matches: ${gives}.`;
  };
  slider.addEventListener("input", update);

  const quarters = [0, 0.25, 0.5, 0.75, 1].map((share) => [share, percent(share)]);
  const wrong = chart(
    "Wrong matches",
    "Wrong matches over the share of queries answered",
    "wrong",
    [...frame("queries answered as a match", (share) => `${+(100 * share * top).toPrecision(3)} %`, quarters), draw("path", { class: "bound", d: path(bound) }), draw("path", { class: "rate", d: path(rate) }), mark],
    make("p", { class: "quiet" }, key(""), " wrong matches seen ", key("bound"), ` at most so many in truth, each with ${percent(found.confidence)} confidence.`),
  );
  $("risk-body").replaceChildren(
    figures(found),
    make("p", { class: "freshness quiet" }, freshness(found)),
    make("details", {}, make("summary", {}, "The calibration in words"), make("pre", { id: "summary" }, found.summary)),
    make("label", { for: "taken" }, "The share of wrong matches that you are ready to take: ", value),
    slider,
    make("p", { class: "ends quiet", "aria-hidden": "true" }, make("span", {}, "0 %"), make("span", {}, percent(top / 2, 1)), make("span", {}, percent(top, 1))),
    said,
    make("p", { class: "quiet" }, "The slider only shows; the service decides by the calibration. To change it, calibrate with another share below."),
    make("div", { class: "charts" }, wrong, errorRates(found)),
    make("section", { id: "drift", "aria-labelledby": "drift-title" }, ...drift(found)),
    ...upkeep(page),
  );
  update();
}

function upkeep(page) {
  const reload = (said) => async (sentence) => {
    page.calibration = await get("/v1/calibration");
    showRisk(page);
    $(said).textContent = sentence;
  };
  return [recalibration(page, reload("recalibrated")), calibrationFromItems(page, reload("items-calibrated")), snapshots(page)];
}
