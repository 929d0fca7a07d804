// Items by label, or those of a label or an id; many can be selected, to be relabelled or deleted together.
import { $, itemPicture, labelText, make } from "./dom.js";
import { editItem, labelField } from "./editor.js";
import { completes, labelsNamed } from "./labels.js";
import { searchItem } from "./search.js";
import { get, itemPath, put, remove } from "./server.js";

const SIZE = 24;
const selected = new Map();
let offset = 0;

const keyOf = ({ id }) => JSON.stringify(id);

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
  $("previous").addEventListener("click", () => go(Math.max(0, offset - SIZE)));
  $("next").addEventListener("click", () => go(offset + SIZE));
  setUpSelection(page);
}

export function showItems(page) {
  return page.attempt(async () => {
    $("place").textContent = "Loading …";
    const sought = $("sought").value.trim();
    let found;
    try {
      found = sought ? await find(sought) : await get(`/v1/items?offset=${offset}&limit=${SIZE}`);
    } catch (error) {
      $("place").textContent = "";
      throw error;
    }
    const last = offset + found.items.length;
    $("place").textContent = found.total ? `${offset + 1} to ${last} of ${found.total.toLocaleString("en")}` : "Nothing";
    $("previous").disabled = offset === 0;
    $("next").disabled = last >= found.total;
    $("item-list").replaceChildren(...groups(found.items).map(([label, items]) => group(page, label, items)));
    if (!found.total) $("item-list").append(make("p", {}, sought ? `No item has the label or the id “${sought}”.` : "The gallery is empty."));
  });
}

// Items whose label reads so, a number or a text; and before them the one whose id does.
async function find(sought) {
  const named = await labelsNamed(sought);
  const labels = named.map(({ label }) => `&label=${encodeURIComponent(JSON.stringify(label))}`).join("");
  const own = offset ? [] : await get(`/v1/items/${encodeURIComponent(sought)}`).then((item) => [item], () => []);
  const found = named.length ? await get(`/v1/items?offset=${offset}&limit=${SIZE}${labels}`) : { total: 0, items: [] };
  const others = found.items.filter((item) => !own.some(({ id }) => id === item.id));
  return { total: found.total + own.length - (found.items.length - others.length), items: [...own, ...others] };
}

// Those that follow each other and have one label.
function groups(items) {
  const found = [];
  for (const item of items) {
    if (!found.length || found.at(-1)[0] !== item.label) found.push([item.label, []]);
    found.at(-1)[1].push(item);
  }
  return found;
}

function group(page, label, items) {
  const name = label === null ? "without a label" : String(label);
  const all = make("button", { type: "button", class: "plain", "aria-label": `Select those shown of ${name}`, onclick: () => {
    for (const item of items) selected.set(keyOf(item), item);
    showSelection();
  } }, "select these");
  return make(
    "section",
    { "aria-label": name },
    make("h3", {}, label === null ? "Without a label" : name, page.gallery.may_write ? all : null),
    make("ul", { class: "grid" }, ...items.map((item) => card(page, item))),
  );
}

function card(page, item) {
  const name = labelText(item.label, item.id);
  const suspect = page.suspects?.get(keyOf(item));
  const change = page.gallery.may_write
    ? make("button", { type: "button", "aria-label": `Edit ${name}, ${item.id}`, onclick: () => editItem(page, item) }, "Edit")
    : null;
  const tick = make("input", { type: "checkbox", "data-key": keyOf(item), checked: selected.has(keyOf(item)), "aria-label": `Select ${item.id}` });
  tick.addEventListener("change", () => {
    if (tick.checked) selected.set(keyOf(item), item);
    else selected.delete(keyOf(item));
    showSelection();
  });
  return make(
    "li",
    { "data-id": item.id },
    itemPicture(item),
    make("span", { class: "both" }, make("strong", {}, name), page.gallery.may_write ? tick : null),
    make("span", { class: "quiet" }, String(item.id)),
    suspect ? make("span", { class: "chip" }, `rather ${suspect.suggested}`) : null,
    make("div", { class: "both" }, make("button", { type: "button", "aria-label": `Search with ${name}, ${item.id}`, onclick: () => searchItem(page, item) }, "Search"), change),
  );
}

function showSelection() {
  $("selection").hidden = !selected.size;
  $("selected").textContent = `${selected.size} selected`;
  $("delete-selected").textContent = "Delete";
  delete $("delete-selected").dataset.sure;
  for (const tick of document.querySelectorAll("#item-list input[data-key]")) tick.checked = selected.has(tick.dataset.key);
}

// What is done to all that are selected, one after the other; what fails leaves the rest selected.
function setUpSelection(page) {
  const label = labelField("selected-label", "");
  $("selection").append(
    make("span", { id: "selected", role: "status" }),
    make("label", { for: "selected-label" }, "Label"),
    label.input,
    label.list,
    make("button", { class: "main" }, "Relabel"),
    make("button", { type: "button", id: "delete-selected", class: "danger" }, "Delete"),
    make("button", { type: "button", id: "clear-selected" }, "Clear"),
  );
  const each = (act, words) => page.attempt(async () => {
    const count = selected.size;
    for (const [key, item] of [...selected]) {
      await act(itemPath(item.id).join(""));
      selected.delete(key);
    }
    showSelection();
    await page.recount();
    await showItems(page);
    $("place").textContent += ` · ${words} ${count}`;
  });
  $("selection").addEventListener("submit", (event) => {
    event.preventDefault();
    page.attempt(async () => {
      const value = await label.value();
      await each((path) => put(path, { label: value }), "relabelled");
    });
  });
  $("delete-selected").addEventListener("click", ({ currentTarget: button }) => {
    if (button.dataset.sure) return each((path) => remove(path), "deleted");
    button.dataset.sure = "yes";
    button.textContent = `Delete ${selected.size} for good?`;
    return null;
  });
  $("clear-selected").addEventListener("click", () => {
    selected.clear();
    showSelection();
  });
}
