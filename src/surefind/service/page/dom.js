// Makes elements. Texts are always texts, never markup: labels and ids are user content.
import { itemPath, picture } from "./server.js";

export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  return fill(element, attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

export function chance(p) {
  if (p > 0.995) return "more than 99 %";
  if (p < 0.005) return "less than 1 %";
  return percent(p);
}

export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

// The time of day, with the day if that is another one.
export function timeText(iso) {
  const when = new Date(iso);
  const time = when.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  const today = when.toDateString() === new Date().toDateString();
  return today ? time : `${when.toLocaleDateString("sv")} ${time}`;
}

// A figure with what it says, for a list of them.
export const tile = (figure, words) => make("div", {}, make("dt", {}, words), make("dd", {}, figure));

export const labelText = (label, id) => (label === null ? `item ${id}` : String(label));

export function kappaText(kappa) {
  if (kappa === null) return "κ unknown";
  return `κ ${kappa >= 100 ? Math.round(kappa).toLocaleString("en") : kappa.toPrecision(2)}`;
}

export function noveltyText(p) {
  return p < 1e-4 ? "p < 0.0001" : `p = ${Number(p.toPrecision(2))}`;
}

// A bar that is filled as far as a share goes; the text beside it says how far.
export const bar = (share) =>
  draw(
    "svg",
    { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { width: 100, height: 10, class: "room" }),
    draw("rect", { width: Math.max(100 * share, 0.5), height: 10, class: "share" }),
  );

// A picture if there is one; or else a field that says what it stands for.
export function pictureOf(path, words, there) {
  const blank = make("div", { class: "picture blank" }, there ? "…" : words);
  if (there) {
    picture(path)
      .then((url) => {
        const image = make("img", { class: "picture", alt: words, src: url });
        image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 64));
        blank.replaceWith(image);
      })
      .catch(() => (blank.textContent = words));
  }
  return blank;
}

export function itemPicture(item) {
  const [path, kind] = itemPath(item.id);
  return pictureOf(`${path}/image${kind}`, labelText(item.label, item.id), item.image);
}
