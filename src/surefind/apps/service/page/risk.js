// Risk: how many queries are answered by themselves, for the wrong matches one is ready to take.
import { $, draw, make, percent } from "./dom.js";

const W = 600, H = 320, LEFT = 58, BOTTOM = 44, TOP = 14, RIGHT = 14;

export function showRisk(page) {
  const found = page.calibration;
  if (!found?.calibrated) {
    $("risk-body").replaceChildren(
      make("p", { class: "card" }, "There is no calibration yet, so the risk is not known. Calibrate the gallery with held-out queries first."),
    );
    return;
  }
  const { coverage, wrong_rate: rate, upper_bound: bound, thresholds } = found.risk_curve;
  const top = Math.max(Math.min(1, 1.15 * Math.max(...bound.filter((_, i) => coverage[i] > 0.05), found.max_wrong)), 1e-6);
  const x = (share) => LEFT + share * (W - LEFT - RIGHT);
  const y = (risk) => H - BOTTOM - Math.min(risk / top, 1) * (H - BOTTOM - TOP);
  const path = (values) => values.map((v, i) => `${i ? "L" : "M"}${x(coverage[i]).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  const mark = draw("g", {});
  const said = make("p", { class: "big", id: "risk-said", role: "status" });
  const slider = make("input", { type: "range", id: "taken", min: 0, max: 1000, value: Math.round((1000 * found.max_wrong) / top) });

  const update = () => {
    const taken = (slider.value / 1000) * top;
    slider.setAttribute("aria-valuetext", percent(taken, 1));
    // The loosest threshold whose bound stays within the risk.
    let best = -1;
    bound.forEach((value, i) => value <= taken && (best = i));
    mark.replaceChildren(draw("line", { class: "here", x1: LEFT, x2: W - RIGHT, y1: y(taken), y2: y(taken) }));
    if (best < 0) {
      said.textContent = `At most ${percent(taken, 1)} wrong matches: no threshold can promise this; everything goes to a person.`;
      return;
    }
    mark.append(draw("circle", { cx: x(coverage[best]), cy: y(bound[best]), r: 5 }));
    said.textContent =
      `At most ${percent(taken, 1)} wrong matches: ${percent(coverage[best])} of the queries are answered by themselves, ` +
      `from a probability of ${thresholds[best].toFixed(3)} up; ${percent(1 - coverage[best])} go to a person.`;
  };
  slider.addEventListener("input", update);

  $("risk-body").replaceChildren(
    make("p", {}, found.summary),
    make("label", { for: "taken" }, "The share of wrong matches that you are ready to take"),
    slider,
    said,
    draw(
      "svg",
      { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Wrong matches over the share of queries answered" },
      ...axes(x, y, top),
      draw("path", { class: "bound", d: path(bound) }),
      draw("path", { class: "rate", d: path(rate) }),
      mark,
    ),
    make("p", { class: "quiet" }, make("span", { class: "key" }), " wrong matches seen ", make("span", { class: "key bound" }), ` at most so many in truth, each with ${percent(found.confidence)} confidence`),
    make("p", { class: "quiet" }, "The slider only shows; the service decides by the calibration. To change it, calibrate with another max_wrong."),
  );
  update();
}

function axes(x, y, top) {
  const parts = [];
  for (let i = 0; i <= 4; i += 1) {
    const share = i / 4, risk = (i / 4) * top;
    parts.push(
      draw("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: y(risk), y2: y(risk) }),
      draw("text", { x: LEFT - 8, y: y(risk) + 4, "text-anchor": "end" }, percent(risk, top < 0.04 ? 1 : 0)),
      draw("text", { x: x(share), y: H - BOTTOM + 18, "text-anchor": i === 4 ? "end" : "middle" }, percent(share)),
    );
  }
  parts.push(draw("text", { x: (LEFT + W) / 2, y: H - 6, "text-anchor": "middle" }, "queries answered as a match"));
  return parts;
}
