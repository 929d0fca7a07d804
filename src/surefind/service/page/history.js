// What was decided lately, each with a way back, and all of it as a file.
import { $, count, make, pictureOf, timeText } from "./dom.js";
import { download, get } from "./server.js";

const SHOWN = 20;

export async function showHistory(page, undo) {
  const found = await get(`/v1/reviews?decided=true&limit=${SHOWN}`);
  const save = make("button", { type: "button", onclick: () => page.attempt(() => download("/v1/reviews?format=csv", "decisions.csv")) }, "Save as CSV");
  $("history").hidden = !found.decisions;
  $("history").replaceChildren(
    make("h3", { id: "history-title" }, `History: ${count(found.decisions, "decision")}`),
    make("p", { class: "actions" }, save),
    make("ol", { class: "history" }, ...found.decided.map((entry) => row(page, entry, undo))),
    ...(found.decisions > found.decided.length ? [make("p", { class: "quiet" }, `The latest ${SHOWN} are shown; the file has all.`)] : []),
  );
}

const WORDS = {
  accept: (entry) => `It is ${entry.label}, as answered`,
  reject: (entry) => `Not in the gallery; the answer was ${entry.answered ?? "no label"}`,
  relabel: (entry) => `It is ${entry.label}; the answer was ${entry.answered ?? "no label"}`,
};

function row(page, entry, undo) {
  const words = WORDS[entry.verdict](entry);
  const who = [entry.reviewer, entry.by].filter(Boolean).map((name) => `${name}, `).join("");
  return make(
    "li",
    {},
    pictureOf(`/v1/reviews/${entry.id}/image`, "query", entry.image),
    make("span", {}, make("strong", {}, words), make("span", { class: "quiet" }, ` ${who}${timeText(entry.when)}${entry.sampled ? ", a random check" : ""}`)),
    make("button", { type: "button", disabled: !page.gallery.may_write, "aria-label": `Undo: ${words}`, onclick: () => undo(entry.id) }, "Undo"),
  );
}
