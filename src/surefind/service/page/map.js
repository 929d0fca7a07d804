// Map: the items in two dimensions, coloured by label; unsure ones as rings, this tab's last queries as crosses.
import { $, draw, itemPicture, kappaText, labelText, make, percent } from "./dom.js";
import { searchItem } from "./search.js";
import { get } from "./server.js";

// Told apart also by most who see colours differently; the tenth and later labels share grey.
const COLOURS = ["#3b6fe0", "#d9822b", "#2e9e5b", "#c0392b", "#8e5bd0", "#9a6b4f", "#d85fa0", "#a3a300", "#1aa3b8"];
const OTHER = "#7d8796";
const UNSURE = 0.1;
const NEAR = 14;

let points = [];
let queries = [];
let lit = null;
let view = { x: 0, y: 0, scale: 1 };
let whole = view;

export function setUpMap(page) {
  const canvas = $("chart");
  const held = new Map();
  let spread = 0;
  canvas.addEventListener("pointerdown", (event) => {
    held.set(event.pointerId, [event.offsetX, event.offsetY]);
    spread = 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = held.get(event.pointerId);
    if (!before) return pick(page, event.offsetX, event.offsetY);
    held.set(event.pointerId, [event.offsetX, event.offsetY]);
    if (held.size === 1) return pan(before[0] - event.offsetX, before[1] - event.offsetY);
    const [a, b] = [...held.values()];
    const wide = Math.hypot(a[0] - b[0], a[1] - b[1]);
    if (spread) zoom(wide / spread, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
    spread = wide;
    return null;
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => {
    held.delete(event.pointerId);
    spread = 0;
    if (end === "pointerup") pick(page, event.offsetX, event.offsetY);
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-40, 0], ArrowRight: [40, 0], ArrowUp: [0, -40], ArrowDown: [0, 40] }[event.key];
    if (step) pan(...step);
    else if (event.key === "+" || event.key === "=") zoom(1.4);
    else if (event.key === "-") zoom(1 / 1.4);
    else return;
    event.preventDefault();
    pick(page, canvas.clientWidth / 2, canvas.clientHeight / 2);
  });
  $("nearer").addEventListener("click", () => zoom(1.4));
  $("farther").addEventListener("click", () => zoom(1 / 1.4));
  $("whole").addEventListener("click", () => {
    view = { ...whole };
    paint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  new ResizeObserver(() => {
    fit();
    paint();
  }).observe(canvas);
}

export function showMap(page) {
  return page.attempt(async () => {
    const found = await get("/v1/map");
    const counts = new Map();
    for (const { label } of found.points) counts.set(label, (counts.get(label) ?? 0) + 1);
    const labels = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || String(a).localeCompare(String(b), "en", { numeric: true }));
    const colours = new Map(labels.map((label, i) => [label, COLOURS[i] ?? OTHER]));
    const sorted = found.points.map(({ kappa }) => kappa ?? Infinity).sort((a, b) => a - b);
    const limit = sorted[Math.floor(UNSURE * sorted.length)];
    points = found.points.map((point) => ({ ...point, colour: colours.get(point.label), unsure: (point.kappa ?? Infinity) < limit }));
    queries = page.queries.filter(({ vector }) => vector?.length === found.centre.length).map((query) => ({ ...query, ...projected(query.vector, found) }));
    lit = null;
    legend(labels, counts, colours);
    describe(found, labels.length);
    fit();
    view = { ...whole };
    paint();
  });
}

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

function projected(vector, { centre, axes }) {
  const apart = vector.map((value, i) => value - centre[i]);
  return { x: dot(axes[0], apart), y: dot(axes[1], apart) };
}

function describe({ points: shown, total, explained }, labels) {
  const part = total > shown.length ? `${shown.length.toLocaleString("en")} of ${total.toLocaleString("en")} items, drawn at random` : `${total.toLocaleString("en")} items`;
  const asked = queries.length ? ` Crosses: your last ${queries.length === 1 ? "query" : `${queries.length} queries`}.` : "";
  $("map-said").textContent = `${part}, of ${labels} labels. Two dimensions show ${percent(explained)} of how they differ: what is apart here is apart, what is together need not be. Rings: the least sure tenth.${asked}`;
  $("chart").setAttribute("aria-label", `A map of ${part}, of ${labels} labels`);
}

function legend(labels, counts, colours) {
  const entry = (label) =>
    make(
      "li",
      {},
      make(
        "button",
        { type: "button", "aria-pressed": "false", onclick: (event) => light(label, event.currentTarget) },
        draw("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, draw("circle", { cx: 5, cy: 5, r: 5, fill: colours.get(label) })),
        ` ${label ?? "no label"} `,
        make("span", { class: "quiet" }, String(counts.get(label))),
      ),
    );
  $("legend").replaceChildren(...labels.slice(0, 40).map(entry), ...(labels.length > 40 ? [make("li", { class: "quiet" }, `and ${labels.length - 40} more`)] : []));
}

// Shows one label alone, or all again.
function light(label, button) {
  const on = button.getAttribute("aria-pressed") === "false";
  for (const other of $("legend").querySelectorAll("button")) other.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-pressed", String(on));
  lit = on ? { label } : null;
  paint();
}

function pan(dx, dy) {
  view.x += dx / view.scale;
  view.y -= dy / view.scale;
  paint();
}

function zoom(times, px = $("chart").clientWidth / 2, py = $("chart").clientHeight / 2) {
  const [x, y] = [view.x + (px - $("chart").clientWidth / 2) / view.scale, view.y - (py - $("chart").clientHeight / 2) / view.scale];
  const scale = Math.min(Math.max(view.scale * times, whole.scale / 4), whole.scale * 200);
  view.x = x + (view.x - x) * (view.scale / scale);
  view.y = y + (view.y - y) * (view.scale / scale);
  view.scale = scale;
  paint();
}

function fit() {
  const canvas = $("chart");
  const wide = canvas.clientWidth, high = canvas.clientHeight, ratio = devicePixelRatio || 1;
  canvas.width = wide * ratio;
  canvas.height = high * ratio;
  const all = [...points, ...queries];
  if (!all.length || !wide) return;
  const range = (name) => all.reduce(([low, top], p) => [Math.min(low, p[name]), Math.max(top, p[name])], [Infinity, -Infinity]);
  const [[x0, x1], [y0, y1]] = [range("x"), range("y")];
  const scale = 0.9 * Math.min(wide / Math.max(x1 - x0, 1e-6), high / Math.max(y1 - y0, 1e-6));
  const moved = view.scale !== whole.scale || view.x !== whole.x || view.y !== whole.y;
  whole = { x: (x0 + x1) / 2, y: (y0 + y1) / 2, scale };
  if (!moved) view = { ...whole };
}

const seen = ({ x, y }) => [$("chart").clientWidth / 2 + (x - view.x) * view.scale, $("chart").clientHeight / 2 - (y - view.y) * view.scale];

let waiting = 0;

// At most once a frame, however fast the mouse is.
function paint() {
  waiting ||= requestAnimationFrame(() => {
    waiting = 0;
    paintNow();
  });
}

function paintNow() {
  const canvas = $("chart"), pen = canvas.getContext("2d"), ratio = devicePixelRatio || 1;
  const styles = getComputedStyle(canvas);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  pen.lineWidth = 1.5;
  for (const point of points) {
    const [x, y] = seen(point);
    pen.globalAlpha = lit && lit.label !== point.label ? 0.08 : 0.85;
    pen.fillStyle = pen.strokeStyle = point.colour;
    pen.beginPath();
    pen.arc(x, y, point.unsure ? 4.5 : 3, 0, 7);
    if (point.unsure) pen.stroke();
    else pen.fill();
  }
  pen.globalAlpha = 1;
  pen.lineWidth = 3;
  pen.strokeStyle = styles.color;
  for (const query of queries) {
    const [x, y] = seen(query);
    pen.beginPath();
    for (const turn of [1, -1]) {
      pen.moveTo(x - 7, y - 7 * turn);
      pen.lineTo(x + 7, y + 7 * turn);
    }
    pen.stroke();
  }
  canvas.dataset.view = [view.x, view.y, view.scale].map((value) => value.toPrecision(4)).join(" ");
}

let picked = null;

// Says what is under the mouse or the finger, and offers to search with it.
function pick(page, px, py) {
  let best = null, least = NEAR;
  for (const point of points) {
    if (lit && lit.label !== point.label) continue;
    const [x, y] = seen(point);
    const apart = Math.hypot(x - px, y - py);
    if (apart < least) [best, least] = [point, apart];
  }
  if (!best || best === picked) return;
  picked = best;
  const name = labelText(best.label, best.id);
  $("picked").replaceChildren(
    make(
      "div",
      { class: "card" },
      itemPicture(best),
      make("div", {}, make("strong", {}, name), make("p", { class: "quiet" }, `${best.id}, ${kappaText(best.kappa)}`), make("button", { type: "button", "aria-label": `Search with ${name}, ${best.id}`, onclick: () => searchItem(page, best) }, "Search with it")),
    ),
  );
}
