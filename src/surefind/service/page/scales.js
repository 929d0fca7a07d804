// How unusual a query is, on a scale, and how sure its embedding.
import { draw, kappaText, make, noveltyText } from "./dom.js";

export const scales = (answer, calibration) => [noveltyScale(answer, calibration), make("p", { class: "quiet" }, kappaText(answer.kappa))];

// The p-value on a log scale from 1 down to 0.0001, with the marks of the gate.
function noveltyScale(answer, calibration) {
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
