// Browse: the gallery from the surest item to the least sure, and the items that confuse others.
import { $, itemPicture, kappaText, labelText, make } from "./dom.js";
import { searchItem } from "./search.js";
import { get } from "./server.js";

const SIZE = 24;
let offset = 0;

export function setUpBrowse(page) {
  const go = (to) => {
    offset = to;
    showBrowse(page);
  };
  $("order").addEventListener("change", () => go(0));
  $("previous").addEventListener("click", () => go(Math.max(0, offset - SIZE)));
  $("next").addEventListener("click", () => go(offset + SIZE));
}

export function showBrowse(page) {
  return page.attempt(async () => {
    const order = $("order").value;
    $("place").textContent = "Loading …";
    let found;
    try {
      found = await get(`/v1/items?order=${order}&offset=${offset}&limit=${SIZE}`);
    } catch (error) {
      $("place").textContent = "";
      throw error;
    }
    const last = Math.min(offset + SIZE, found.total);
    $("place").textContent = found.total ? `${offset + 1} to ${last} of ${found.total.toLocaleString("en")}` : "Nothing";
    $("previous").disabled = offset === 0;
    $("next").disabled = last >= found.total;
    $("items").replaceChildren(...found.items.map((item) => card(page, item)));
    if (!found.total) {
      $("items").replaceChildren(
        make("li", {}, order === "confusing" ? "No item is nearest to one of another label." : "The gallery is empty."),
      );
    }
  });
}

function card(page, item) {
  const name = labelText(item.label, item.id);
  return make(
    "li",
    {},
    itemPicture(item),
    make("strong", {}, name),
    make("span", { class: "quiet" }, String(item.id)),
    make("span", { class: "quiet" }, kappaText(item.kappa)),
    item.confuses ? make("span", {}, `confuses ${item.confuses}`) : null,
    make("button", { type: "button", "aria-label": `Search with ${name}, ${item.id}`, onclick: () => searchItem(page, item) }, "Search with it"),
  );
}
