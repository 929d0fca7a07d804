// What was decided lately, each with a way back, and all of it as a file.
import { $, count, make, pictureOf, timeText } from "./dom.js";
import { download, get } from "./server.js";

const SHOWN = 20;

export async function showHistory(page, undo) {
  const found = await get(`/v1/reviews/history?limit=${SHOWN}`);
  const save = (format) => make("button", { type: "button", onclick: () => page.attempt(() => download(`/v1/reviews/export?format=${format}`, `decisions.${format}`)) }, `Save as ${format.toUpperCase()}`);
  $("history").hidden = !found.total;
  $("history").replaceChildren(
    make("h3", { id: "history-title" }, `History: ${count(found.total, "decision")}`),
    make("p", { class: "actions" }, save("csv"), save("json")),
    make("ol", { class: "history" }, ...found.decided.map((entry) => row(page, entry, undo))),
    ...(found.total > found.decided.length ? [make("p", { class: "quiet" }, `The latest ${SHOWN} are shown; the files have all.`)] : []),
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
