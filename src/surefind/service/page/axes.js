// The frame of a chart: where a value lies, and lines with ticks.
import { draw, make } from "./dom.js";

export const W = 440, H = 300, LEFT = 54, BOTTOM = 44, TOP = 14, RIGHT = 14;

// Shares from 0 to 1 to places in the frame.
export const across = (share) => LEFT + share * (W - LEFT - RIGHT);
export const up = (share) => H - BOTTOM - Math.min(share, 1) * (H - BOTTOM - TOP);

// The least number from a value up that has four parts of few digits, so that ticks say where they are.
export function ceiling(value) {
  const unit = 10 ** Math.floor(Math.log10(value / 4));
  return 4 * unit * [1, 2, 2.5, 5, 10].find((step) => 4 * unit * step >= value * (1 - 1e-9));
}

// Five lines with their values, and values along the bottom as [share, text].
export function frame(title, value, bottom) {
  const parts = [];
  for (let i = 0; i <= 4; i += 1) {
    parts.push(
      draw("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: up(i / 4), y2: up(i / 4) }),
      draw("text", { x: LEFT - 8, y: up(i / 4) + 4, "text-anchor": "end" }, value(i / 4)),
    );
  }
  for (const [share, text] of bottom) parts.push(draw("text", { x: across(share), y: H - BOTTOM + 18, "text-anchor": share > 0.97 ? "end" : "middle" }, text));
  parts.push(draw("text", { x: (LEFT + W) / 2, y: H - 6, "text-anchor": "middle" }, title));
  return parts;
}

export function chart(title, words, kind, parts, ...below) {
  return make(
    "figure",
    {},
    make("figcaption", {}, title),
    draw("svg", { class: `chart ${kind}`, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": words }, ...parts.filter(Boolean)),
    ...below,
  );
}

export const key = (kind) => make("span", { class: `key ${kind}` });
