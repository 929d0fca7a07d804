// Adds an item, changes its label, and deletes it.
import { $, itemPicture, labelText, make } from "./dom.js";
import { showItems } from "./items.js";
import { completes, labelsNamed } from "./labels.js";
import { itemPath, put, remove, upload } from "./server.js";

const KINDS = "image/png,image/jpeg,image/webp,image/gif,image/bmp";

export function setUpEditor(page) {
  $("add-item").addEventListener("click", () => {
    const file = make("input", { id: "new-file", type: "file", accept: KINDS, required: true });
    open("Add an item", addFields(page, () => file.files[0], "new", () => {
      $("editor").close();
      showItems(page);
    }, make("p", {}, make("label", { for: "new-file" }, "Image"), file)));
  });
}

function open(title, ...parts) {
  const close = make("button", { type: "button", onclick: () => $("editor").close() }, "Cancel");
  $("editor").replaceChildren(make("h2", { id: "editor-title" }, title), ...parts.filter(Boolean), close);
  $("editor").showModal();
}

// Below an answer: the image that was searched with becomes an item.
export function addForm(page, file, answer) {
  const fields = addFields(page, () => file, "kept", () => fields.parentElement.replaceChildren(make("p", { role: "status" }, "Added to the gallery. Its calibration is being renewed.")));
  if (answer.decision === "match") $$(fields, "#kept-label").value = String(answer.label);
  return make("details", { class: "card" }, make("summary", {}, "Add this image to the gallery"), fields);
}

const $$ = (element, selector) => element.querySelector(selector);

function addFields(page, file, name, done, ...before) {
  const label = labelField(`${name}-label`, "");
  const id = make("input", { id: `${name}-id`, maxlength: 256, autocomplete: "off", placeholder: "made for you" });
  const form = make(
    "form",
    { class: "fields" },
    ...before,
    make("p", {}, make("label", { for: label.input.id }, "Label"), label.input, label.list),
    make("p", {}, make("label", { for: id.id }, "Id"), id),
    make("button", { class: "main" }, "Add it"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    page.attempt(async () => {
      const named = id.value.trim();
      const called = await label.value();
      await upload("/v1/items/image", file(), { id: named ? JSON.stringify(named) : null, label: called === null ? null : JSON.stringify(called) });
      await page.recount();
      done();
    });
  });
  return form;
}

// A label that is in use keeps its type; a new one is a text, like all others or not.
export function labelField(id, text) {
  const list = make("datalist", { id: `${id}-list` });
  const input = make("input", { id, value: text, list: list.id, maxlength: 256, autocomplete: "off", placeholder: "none" });
  completes(input, list);
  const value = async () => {
    const typed = input.value.trim();
    if (!typed) return null;
    const [found] = await labelsNamed(typed);
    return found ? found.label : typed;
  };
  return { input, list, value };
}

export function editItem(page, item) {
  const [path, kind] = itemPath(item.id);
  const label = labelField("edit-label", item.label === null ? "" : String(item.label));
  const said = make("p", { role: "status" });
  const act = async (action, words) => {
    const done = await page.attempt(action);
    if (!done) $("editor").close();
    else {
      said.textContent = words;
      await page.recount();
      showItems(page);
    }
  };
  const form = make(
    "form",
    { class: "fields" },
    make("p", {}, make("label", { for: "edit-label" }, "Label"), label.input, label.list),
    make("button", { class: "main" }, "Keep this label"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const unchanged = label.input.value.trim() === String(item.label ?? "");
    act(async () => put(`${path}${kind}`, { label: unchanged ? item.label : await label.value() }), "The label is kept.");
  });
  const drop = make("button", { type: "button", class: "danger" }, "Delete this item");
  drop.addEventListener("click", () => {
    if (drop.dataset.sure) act(async () => {
      await remove(`${path}${kind}`);
      $("editor").close();
    }, "");
    drop.dataset.sure = "yes";
    drop.textContent = "Delete it for good?";
  });
  open(
    `Edit ${labelText(item.label, item.id)}`,
    make("p", { class: "quiet" }, `Id ${item.id}`),
    itemPicture(item),
    form,
    said,
    drop,
  );
}
