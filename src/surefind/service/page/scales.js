// How sure a query is (κ) and how unusual (novelty), each on its own scale.
import { draw, kappaText, make, noveltyText, percent } from "./dom.js";

// κ, against that of the calibration's queries.
export function kappaScale(answer, calibration) {
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
    { class: "scale" },
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

// The p-value on a log scale from 1 down to 0.0001, with the marks of the gate.
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
    { class: "scale novelty" },
    draw(
      "svg",
      { viewBox: `-10 -4 ${width + 30} 40`, role: "img", preserveAspectRatio: "xMinYMid", "aria-label": words },
      ...zones,
      ...marks.flatMap((p) => [
        draw("line", { class: "mark", x1: x(p), x2: x(p), y1: 0, y2: height + 4 }),
        draw("text", { x: x(p), y: 32, "text-anchor": "middle" }, String(Number(p.toPrecision(2)))),
      ]),
      draw("line", { class: "needle", x1: here, x2: here, y1: -4, y2: height + 5 }),
      draw("text", { x: 0, y: 32 }, "usual"),
      draw("text", { x: width, y: 32, "text-anchor": "end" }, "never seen"),
    ),
    make("figcaption", {}, `${words}.`),
  );
}
