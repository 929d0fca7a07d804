// What one sees before the first search: how much there is, how fresh the calibration is, and what to try.
import { $, count, itemPicture, labelText, make, percent } from "./dom.js";
import { searchItem } from "./search.js";
import { get } from "./server.js";
import { freshness } from "./watch.js";

const EXAMPLES = 6;

export function showStart(page) {
  if ($("answer").childElementCount || $("busy").textContent) return null;
  return page.attempt(async () => {
    // A comfort: what a large gallery cannot list in time is left out.
    const nothing = { items: [] };
    const [labels, sure, unsure] = await Promise.all([
      get("/v1/labels?limit=1").catch(() => null),
      get("/v1/items?limit=60").catch(() => nothing),
      get("/v1/items?order=least-sure&limit=2").catch(() => nothing),
    ]);
    if ($("answer").childElementCount) return;
    const { items } = page.gallery;
    $("start").replaceChildren(
      make("p", { class: "lead" }, purpose(page)),
      make(
        "dl",
        { class: "tiles" },
        tile(items.toLocaleString("en"), items === 1 ? "item" : "items"),
        ...(labels ? [tile(labels.total.toLocaleString("en"), labels.total === 1 ? "label" : "labels")] : []),
        ...promise(page.calibration),
      ),
      page.calibration.calibrated ? make("p", { class: "freshness quiet" }, freshness(page.calibration)) : null,
      ...examples(page, sure.items, unsure.items),
    );
  });
}

function purpose({ gallery, calibration }) {
  if (!gallery.items) return "The gallery is empty. Add items, then ask what a new image shows.";
  const what = gallery.images ? "Give an image, and" : "Pick an item, and";
  return calibration.calibrated
    ? `${what} the gallery says what it is, that it is not sure, or that it does not know it.`
    : `${what} the gallery says what is nearest. It is not calibrated, so it cannot say how sure that is.`;
}

const tile = (figure, words) => make("div", {}, make("dt", {}, words), make("dd", {}, figure));

function promise({ calibrated, threshold, max_wrong: wrong, confidence }) {
  if (!calibrated) return [tile("none", "calibration")];
  if (threshold === null) return [tile("not reached", `${percent(wrong, wrong < 0.01 ? 1 : 0)} wrong matches at most`)];
  return [tile(`≤ ${percent(wrong, wrong < 0.01 ? 1 : 0)}`, `wrong matches, with ${percent(confidence)} confidence`)];
}

// Items of different labels, and the least sure ones; those with pictures first.
function examples(page, sure, unsure) {
  const seen = new Set();
  const varied = [...sure].sort((a, b) => b.image - a.image).filter(({ label }) => !seen.has(label) && seen.add(label));
  const doubtful = unsure.filter((item) => !varied.slice(0, EXAMPLES - 2).some(({ id }) => id === item.id));
  const chosen = [...varied.slice(0, EXAMPLES - doubtful.length).map((item) => [item, "sure"]), ...doubtful.map((item) => [item, "hardly sure"])];
  if (!chosen.length) return [];
  const card = ([item, kind]) => {
    const name = labelText(item.label, item.id);
    const button = make("button", { type: "button", "aria-label": `Search with ${name}, ${item.id}`, onclick: () => searchItem(page, item) }, itemPicture(item), make("strong", {}, name), make("span", { class: "quiet" }, kind));
    return make("li", {}, button);
  };
  return [make("h3", {}, `Try ${count(chosen.length, "item")} of the gallery`), make("ul", { class: "grid tries" }, ...chosen.map(card))];
}
