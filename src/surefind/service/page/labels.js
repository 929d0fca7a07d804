// A field for a label in use, completed by the service. 7 and "7" are two labels: what is sent has the right type.
import { make } from "./dom.js";
import { get } from "./server.js";

const PAUSE = 150;

const sought = (text, limit) => get(`/v1/labels?contains=${encodeURIComponent(text)}&limit=${limit}`);

// Fills the list of an input with labels that have its text.
export function completes(input, list) {
  let timer;
  const refill = async () => {
    const found = await sought(input.value.trim(), 50).catch(() => null);
    if (!found) return;
    const names = [...new Set(found.labels.map(({ label }) => String(label)))];
    list.replaceChildren(...names.map((name) => make("option", { value: name })));
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(refill, PAUSE);
  });
  input.addEventListener("focus", refill);
}

// The labels in use that read exactly so: none, one, or a number and a text.
export async function labelsNamed(text) {
  const found = await sought(text, 20);
  return found.labels.filter(({ label }) => String(label) === text);
}

// A form that ends in a label in use. What is no label is answered with a sentence and the nearest ones.
export function labelForm(page, { id, words, button, chosen, away }) {
  const list = make("datalist", { id: `${id}-list` });
  const input = make("input", { id, list: list.id, autocomplete: "off", required: true, "aria-describedby": `${id}-said` });
  const said = make("p", { id: `${id}-said`, class: "quiet", role: "status" });
  completes(input, list);
  const submit = async () => {
    const text = input.value.trim();
    const found = await labelsNamed(text);
    if (found.length === 1) return chosen(found[0].label);
    if (found.length > 1) {
      const kinds = { number: "the number", text: "the text" };
      said.replaceChildren("There are two: ", ...found.map(({ label, kind }) => make("button", { type: "button", onclick: () => chosen(label) }, `${kinds[kind]} ${label}`)));
      return null;
    }
    const near = (await sought(text, 5)).labels.map(({ label }) => label);
    said.textContent = `No item has the label “${text}”.${near.length ? ` There is ${near.join(", ")}.` : ""} ${away}`;
    return null;
  };
  const form = make("form", { class: "controls" }, make("label", { for: id }, words), input, list, make("button", { class: "main" }, button), said);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    page.attempt(submit);
  });
  return form;
}
