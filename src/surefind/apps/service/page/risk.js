// Risk: how many queries are answered by themselves, for the wrong matches one is ready to take; how many
// of the unknown are a match, and how many of the enrolled are missed.
import { $, draw, make, percent } from "./dom.js";
import { recalibration } from "./recalibrate.js";
import { get } from "./server.js";
import { freshness } from "./watch.js";

const W = 440, H = 300, LEFT = 54, BOTTOM = 44, TOP = 14, RIGHT = 14;

export function showRisk(page) {
  const found = page.calibration;
  if (!found?.calibrated) {
    $("risk-body").replaceChildren(
      make("p", { class: "card" }, "There is no calibration yet, so the risk is not known. Calibrate the gallery with held-out queries first."),
      learning(page),
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
    make("p", { id: "freshness", class: "quiet" }, freshness(found)),
    make("label", { for: "taken" }, "The share of wrong matches that you are ready to take"),
    slider,
    said,
    make(
      "div",
      { class: "charts" },
      make(
        "figure",
        {},
        make("figcaption", {}, "Wrong matches"),
        draw(
          "svg",
          { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Wrong matches over the share of queries answered" },
          ...axes(x, y, top),
          draw("path", { class: "bound", d: path(bound) }),
          draw("path", { class: "rate", d: path(rate) }),
          mark,
        ),
        make("p", { class: "quiet" }, make("span", { class: "key" }), " wrong matches seen ", make("span", { class: "key bound" }), ` at most so many in truth, each with ${percent(found.confidence)} confidence`),
      ),
      errorRates(found),
    ),
    make("p", { class: "quiet" }, "The slider only shows; the service decides by the calibration. To change it, calibrate with another max_wrong."),
    learning(page),
  );
  update();
}

// FNIR against FPIR, the latter on a logarithmic scale that ends where the unknown queries say no more.
function errorRates({ identification: rates, risk_curve: curve, confidence }) {
  if (!rates.unknown || !rates.enrolled) {
    const kind = rates.unknown ? "enrolled" : "unknown";
    return make("p", { class: "quiet" }, `No ${kind} queries tested the calibration, so there are no error rates of strangers and of the enrolled.`);
  }
  const decades = Math.ceil(Math.log10(rates.unknown));
  const x = (fpir) => LEFT + Math.max(0, 1 + Math.log10(Math.max(fpir, 1e-9)) / decades) * (W - LEFT - RIGHT);
  const y = (fnir) => H - BOTTOM - fnir * (H - BOTTOM - TOP);
  const points = (fpir, fnir) => fpir.map((f, i) => `${x(f).toFixed(1)} ${y(fnir[i]).toFixed(1)}`);
  const seen = points(rates.fpir, rates.fnir);
  const band = [...points(rates.fpir, rates.fnir_upper), ...points(rates.fpir, rates.fnir_lower).reverse()];
  const ticks = [];
  for (let i = 0; i <= 4; i += 1) {
    ticks.push(
      draw("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: y(i / 4), y2: y(i / 4) }),
      draw("text", { x: LEFT - 8, y: y(i / 4) + 4, "text-anchor": "end" }, percent(i / 4)),
    );
  }
  for (let i = 0; i <= decades; i += 1) {
    const share = 10 ** (i - decades);
    ticks.push(draw("text", { x: x(share), y: H - BOTTOM + 18, "text-anchor": i === decades ? "end" : "middle" }, `${i ? "" : "≤ "}${+(100 * share).toPrecision(2)} %`));
  }
  const at = curve.chosen;
  return make(
    "figure",
    {},
    make("figcaption", {}, "Strangers and the enrolled"),
    draw(
      "svg",
      { class: "chart rates", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Enrolled queries that are missed (FNIR) over unknown queries that are a match (FPIR)" },
      ...ticks,
      draw("text", { x: (LEFT + W) / 2, y: H - 6, "text-anchor": "middle" }, "unknown that are a match (FPIR)"),
      draw("path", { class: "band", d: `M${band.join("L")}Z` }),
      draw("path", { class: "bound", d: `M${points(rates.fpir_upper, rates.fnir).join("L")}` }),
      draw("path", { class: "rate", d: `M${seen.join("L")}` }),
      at === null ? null : draw("circle", { cx: x(rates.fpir[at]), cy: y(rates.fnir[at]), r: 5 }),
    ),
    make(
      "p",
      { class: "quiet" },
      make("span", { class: "key" }),
      " enrolled that are missed (FNIR), ",
      make("span", { class: "key band" }),
      " its bounds, and ",
      make("span", { class: "key bound" }),
      ` FPIR at most so high, each with ${percent(confidence)} confidence`,
      at === null ? "" : `. Dot, the threshold in use: FPIR ${percent(rates.fpir[at], 1)}, at most ${percent(rates.fpir_upper[at], 1)}; FNIR ${percent(rates.fnir[at], 1)}, at most ${percent(rates.fnir_upper[at], 1)}`,
    ),
  );
}

function learning(page) {
  return recalibration(page, async (sentence) => {
    page.calibration = await get("/v1/calibration");
    showRisk(page);
    $("recalibrated").textContent = sentence;
  });
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
