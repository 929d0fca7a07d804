// Items: the gallery from the surest to the least sure, or those of a label or an id.
import { $, itemPicture, kappaText, labelText, make } from "./dom.js";
import { editItem } from "./editor.js";
import { completes, labelsNamed } from "./labels.js";
import { searchItem } from "./search.js";
import { get } from "./server.js";

const SIZE = 24;
const MOST_FOUND = 200;
let offset = 0;

export function setUpItems(page) {
  const go = (to) => {
    offset = to;
    showItems(page);
  };
  completes($("sought"), $("sought-labels"));
  $("find").addEventListener("submit", (event) => {
    event.preventDefault();
    go(0);
  });
  $("order").addEventListener("change", () => go(0));
  $("previous").addEventListener("click", () => go(Math.max(0, offset - SIZE)));
  $("next").addEventListener("click", () => go(offset + SIZE));
}

export function showItems(page) {
  return page.attempt(async () => {
    $("place").textContent = "Loading …";
    const sought = $("sought").value.trim();
    let found;
    try {
      found = sought ? await find(sought) : await get(`/v1/items?order=${$("order").value}&offset=${offset}&limit=${SIZE}`);
    } catch (error) {
      $("place").textContent = "";
      throw error;
    }
    const last = offset + found.items.length;
    $("place").textContent = found.total ? `${offset + 1} to ${last} of ${found.total.toLocaleString("en")}` : "Nothing";
    $("previous").disabled = offset === 0;
    $("next").disabled = last >= found.total || sought !== "";
    $("item-list").replaceChildren(...found.items.map((item) => card(page, item)));
    if (!found.total) $("item-list").replaceChildren(make("li", {}, nothing(sought)));
  });
}

function nothing(sought) {
  if (sought) return `No item has the label or the id “${sought}”.`;
  return "The gallery is empty.";
}

// Items whose label reads so, a number or a text; and before them the one whose id does.
async function find(sought) {
  const named = await labelsNamed(sought);
  const labels = named.map(({ label }) => `label=${encodeURIComponent(JSON.stringify(label))}`).join("&");
  const own = await get(`/v1/items/${encodeURIComponent(sought)}`).then((item) => [item], () => []);
  const items = [...own];
  for (let after = ""; named.length && items.length < MOST_FOUND && after !== null; ) {
    const found = await get(`/v1/items?order=${$("order").value}&limit=${MOST_FOUND}&${labels}${after}`);
    items.push(...found.items.filter(({ id }) => !own.some((item) => item.id === id)));
    after = found.next ? `&after=${encodeURIComponent(found.next)}` : null;
  }
  const counted = named.reduce((sum, { items: own }) => sum + own, 0);
  return { total: Math.max(counted, items.length), items };
}

function card(page, item) {
  const name = labelText(item.label, item.id);
  const change = page.gallery.may_write
    ? make("button", { type: "button", "aria-label": `Edit ${name}, ${item.id}`, onclick: () => editItem(page, item) }, "Edit")
    : null;
  return make(
    "li",
    { "data-id": item.id },
    itemPicture(item),
    make("strong", {}, name),
    make("span", { class: "quiet" }, String(item.id)),
    make("span", { class: "quiet" }, kappaText(item.kappa)),
    make("div", { class: "both" }, make("button", { type: "button", "aria-label": `Search with ${name}, ${item.id}`, onclick: () => searchItem(page, item) }, "Search"), change),
  );
}
