// Sphere: three-dimensional embeddings where they are, turnable by mouse, finger and arrow keys.
import { $, draw, make } from "./dom.js";
import { get } from "./server.js";

const COLOURS = ["#3b6fe0", "#d9822b", "#2e9e5b", "#c0392b", "#8e5bd0", "#9a6b4f", "#d85fa0", "#6f7a8a", "#a3a300", "#1aa3b8"];
let points = [];
let yaw = 0.6, pitch = 0.35;

export function setUpSphere() {
  const globe = $("globe");
  let from = null;
  globe.addEventListener("pointerdown", (event) => {
    from = [event.clientX, event.clientY];
    globe.setPointerCapture(event.pointerId);
  });
  globe.addEventListener("pointermove", (event) => {
    if (!from) return;
    turn((event.clientX - from[0]) / 150, (event.clientY - from[1]) / 150);
    from = [event.clientX, event.clientY];
  });
  for (const end of ["pointerup", "pointercancel"]) globe.addEventListener(end, () => (from = null));
  globe.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] }[event.key];
    if (!step) return;
    event.preventDefault();
    turn(...step);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
}

export function showSphere(page) {
  return page.attempt(async () => {
    const found = await get("/v1/items?limit=1000&vectors=true");
    const labels = [...new Set(found.items.map((item) => item.label))].sort((a, b) => String(a).localeCompare(String(b), "en", { numeric: true }));
    const sorted = found.items.map((item) => item.kappa ?? Infinity).sort((a, b) => a - b);
    const rank = (kappa) => sorted.findIndex((value) => value >= (kappa ?? Infinity)) / sorted.length;
    points = found.items.map((item) => ({
      vector: item.vector,
      colour: COLOURS[labels.indexOf(item.label) % COLOURS.length],
      unsure: 1 - rank(item.kappa),
    }));
    $("legend").replaceChildren(
      ...labels.slice(0, 30).map((label, i) =>
        make("li", {}, draw("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, draw("circle", { cx: 5, cy: 5, r: 5, fill: COLOURS[i % COLOURS.length] })), ` ${label ?? "no label"}`),
      ),
    );
    const part = found.total > found.items.length ? ` the surest ${found.items.length} of` : "";
    $("globe").setAttribute("aria-label", `A sphere with${part} ${found.total} items of ${labels.length} labels; turn it with the arrow keys.`);
    paint();
  });
}

function turn(sideways, upwards) {
  yaw += sideways;
  pitch = Math.min(Math.max(pitch + upwards, -1.5), 1.5);
  $("globe").dataset.view = `${yaw.toFixed(2)} ${pitch.toFixed(2)}`;
  paint();
}

function seen([a, b, c]) {
  const x = a * Math.cos(yaw) + b * Math.sin(yaw);
  const away = -a * Math.sin(yaw) + b * Math.cos(yaw);
  return [x, c * Math.cos(pitch) - away * Math.sin(pitch), away * Math.cos(pitch) + c * Math.sin(pitch)];
}

function paint() {
  const globe = $("globe"), pen = globe.getContext("2d");
  const ink = getComputedStyle(document.body).color;
  const middle = globe.width / 2, radius = 0.88 * middle;
  pen.clearRect(0, 0, globe.width, globe.height);
  pen.strokeStyle = ink;
  pen.globalAlpha = 0.18;
  pen.lineWidth = 1.5;
  for (const line of circles()) {
    pen.beginPath();
    line.forEach((vector, i) => {
      const [x, up] = seen(vector);
      pen[i ? "lineTo" : "moveTo"](middle + radius * x, middle - radius * up);
    });
    pen.stroke();
  }
  const placed = points.map((point) => [seen(point.vector), point]).sort((a, b) => b[0][2] - a[0][2]);
  for (const [[x, up, away], point] of placed) {
    pen.globalAlpha = away > 0 ? 0.22 : 0.95;
    pen.fillStyle = pen.strokeStyle = point.colour;
    pen.beginPath();
    pen.arc(middle + radius * x, middle - radius * up, 4 + 8 * point.unsure, 0, 7);
    pen.lineWidth = 2.5;
    if (point.unsure > 0.6) pen.stroke();
    else pen.fill();
  }
  pen.globalAlpha = 1;
}

function circles() {
  const lines = [];
  const round = (make) => lines.push(Array.from({ length: 65 }, (_, i) => make((i / 64) * 2 * Math.PI)));
  for (const tilt of [-1, -0.5, 0, 0.5, 1]) round((t) => [Math.cos(tilt) * Math.cos(t), Math.cos(tilt) * Math.sin(t), Math.sin(tilt)]);
  for (let i = 0; i < 6; i += 1) {
    const turned = (i * Math.PI) / 6;
    round((t) => [Math.cos(t) * Math.cos(turned), Math.cos(t) * Math.sin(turned), Math.sin(t)]);
  }
  return lines;
}
