// Strangers and the enrolled: FNIR against FPIR, the latter on a logarithmic scale that ends where the unknown
// queries say no more.
import { across, chart, frame, key, up } from "./axes.js";
import { draw, make, percent } from "./dom.js";

export function errorRates({ identification: rates, risk_curve: curve, confidence }) {
  if (!rates.unknown || !rates.enrolled) {
    const kind = rates.unknown ? "enrolled" : "unknown";
    return make("p", { class: "quiet" }, `No ${kind} queries tested the calibration, so there are no error rates of strangers and of the enrolled.`);
  }
  const decades = Math.ceil(Math.log10(rates.unknown));
  const x = (fpir) => across(Math.max(0, 1 + Math.log10(Math.max(fpir, 1e-9)) / decades));
  const points = (fpir, fnir) => fpir.map((f, i) => `${x(f).toFixed(1)} ${up(fnir[i]).toFixed(1)}`);
  const band = [...points(rates.fpir, rates.fnir_upper), ...points(rates.fpir, rates.fnir_lower).reverse()];
  const ticks = Array.from({ length: decades + 1 }, (_, i) => [i / decades, `${i ? "" : "≤ "}${+(100 * 10 ** (i - decades)).toPrecision(2)} %`]);
  const at = curve.chosen;
  return chart(
    "Strangers and the enrolled",
    "Enrolled queries that are missed (FNIR) over unknown queries that are a match (FPIR)",
    "rates",
    [
      ...frame("unknown that are a match (FPIR)", (share) => percent(share), ticks),
      draw("path", { class: "band", d: `M${band.join("L")}Z` }),
      draw("path", { class: "bound", d: `M${points(rates.fpir_upper, rates.fnir).join("L")}` }),
      draw("path", { class: "rate", d: `M${points(rates.fpir, rates.fnir).join("L")}` }),
      at === null ? null : draw("circle", { cx: x(rates.fpir[at]), cy: up(rates.fnir[at]), r: 5 }),
    ],
    make(
      "p",
      { class: "quiet" },
      key(""),
      " enrolled that are missed (FNIR), ",
      key("band"),
      " its bounds, and ",
      key("bound"),
      ` FPIR at most so high, each with ${percent(confidence)} confidence`,
      at === null ? "." : `. Dot, the threshold in use: FPIR ${percent(rates.fpir[at], 1)}, at most ${percent(rates.fpir_upper[at], 1)}; FNIR ${percent(rates.fnir[at], 1)}, at most ${percent(rates.fnir_upper[at], 1)}.`,
    ),
  );
}
