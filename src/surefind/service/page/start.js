// What one sees before the first search: how much there is, how fresh the calibration is, and what to try.
import { $, count, itemPicture, labelText, make, tile } from "./dom.js";
import { promised } from "./risk.js";
import { searchItem } from "./search.js";
import { get } from "./server.js";
import { freshness } from "./watch.js";

const EXAMPLES = 6;

export function showStart(page) {
  if ($("answer").childElementCount || $("busy").textContent) return null;
  return page.attempt(async () => {
    // A comfort: what a large gallery cannot list in time is left out.
    const labels = await get(`/v1/labels?limit=${EXAMPLES}`).catch(() => null);
    const one = ({ label }) => get(`/v1/items?limit=1&label=${encodeURIComponent(JSON.stringify(label))}`).catch(() => ({ items: [] }));
    const listed = await Promise.all(labels?.labels.length ? labels.labels.map(one) : [get(`/v1/items?limit=${EXAMPLES}`)]);
    if ($("answer").childElementCount) return;
    const { items } = page.gallery;
    $("start").replaceChildren(
      make("p", { class: "lead" }, purpose(page)),
      make(
        "dl",
        { class: "tiles" },
        tile(items.toLocaleString("en"), items === 1 ? "item" : "items"),
        ...(labels ? [tile(labels.total.toLocaleString("en"), labels.total === 1 ? "label" : "labels")] : []),
        page.calibration.calibrated ? promised(page.calibration) : tile("none", "calibration"),
      ),
      page.calibration.calibrated ? make("p", { class: "freshness quiet" }, freshness(page.calibration)) : null,
      ...examples(page, listed.flatMap(({ items: some }) => some)),
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

// Items of different labels, those with pictures first.
function examples(page, items) {
  const seen = new Set();
  const chosen = [...items].sort((a, b) => b.image - a.image).filter(({ label }) => !seen.has(label) && seen.add(label)).slice(0, EXAMPLES);
  if (!chosen.length) return [];
  const card = (item) => {
    const name = labelText(item.label, item.id);
    return make("li", {}, make("button", { type: "button", "aria-label": `Search with ${name}, ${item.id}`, onclick: () => searchItem(page, item) }, itemPicture(item), make("strong", {}, name)));
  };
  return [make("h3", {}, `Try ${count(chosen.length, "item")} of the gallery`), make("ul", { class: "grid tries" }, ...chosen.map(card))];
}
