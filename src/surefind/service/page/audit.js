// Audit: items that are probably mislabelled, duplicated, confused or unusable, and impostors; to be mended here.
import { $, itemPicture, labelText, make } from "./dom.js";
import { get, itemPath, put, remove } from "./server.js";

const KINDS = {
  mislabelled: ["Probably mislabelled", "the item", "nearest of the label that the rest suggests"],
  duplicate: ["Near-duplicates under different labels", "one", "the other"],
  confusion: ["Labels confused with one another", "", ""],
  unusable: ["Hardly usable", "the item", ""],
  impostor: ["Impostors: without their label, items are answered with another", "the item", "what it found"],
};

export function setUpAudit(page) {
  $("look").addEventListener("click", () => look(page));
}

async function look(page) {
  $("look").disabled = true;
  $("audit-status").textContent = "Looking …";
  await page.attempt(async () => {
    const found = await get("/v1/audit");
    $("audit-said").replaceChildren(...found.sentences.map((sentence) => make("li", {}, sentence)));
    $("findings").replaceChildren(...Object.keys(KINDS).map((kind) => group(page, kind, found.findings.filter((f) => f.kind === kind))).filter(Boolean));
  });
  $("audit-status").textContent = "";
  $("look").disabled = false;
}

function group(page, kind, findings) {
  if (!findings.length) return null;
  const list = make("ul", { class: "findings" }, ...findings.map((finding) => card(page, finding)));
  return make("section", { "aria-labelledby": `audit-${kind}` }, make("h3", { id: `audit-${kind}` }, KINDS[kind][0]), list);
}

function card(page, finding) {
  const done = make("p", { role: "status" });
  const [, first, second] = KINDS[finding.kind];
  const pair = finding.kind === "confusion" ? null : make(
    "div",
    { class: "pair" },
    figure(finding.id, finding.label, finding.image, first),
    finding.other_id === null ? null : figure(finding.other_id, finding.other_label, finding.other_image, second),
  );
  const element = make("li", { class: "card" }, pair, make("p", {}, finding.sentence));
  if (page.gallery?.may_write) element.append(...mending(page, finding, done));
  element.append(done);
  return element;
}

function figure(id, label, image, words) {
  const name = labelText(label, id);
  return make("figure", {}, itemPicture({ id, label, image }), make("figcaption", {}, make("strong", {}, name), make("span", { class: "quiet" }, ` ${id}${words ? `, ${words}` : ""}`)));
}

// Buttons that mend a finding; each says what it did, and none can be pressed twice.
function mending(page, finding, done) {
  // Neither two labels nor an impostor, who did nothing wrong, are mended by removing an item.
  if (finding.kind === "confusion" || finding.kind === "impostor") return [];
  const [path, kind] = itemPath(finding.id);
  const buttons = [];
  const button = (words, name, act, said) => {
    const made = make("button", { type: "button", "aria-label": `${name} ${finding.id}` }, words);
    made.addEventListener("click", () => page.attempt(async () => {
      await act();
      for (const other of buttons) other.disabled = true;
      done.textContent = said;
    }));
    buttons.push(made);
  };
  if (finding.kind === "mislabelled" && finding.other_label !== null) {
    button(`It is ${finding.other_label}`, `Relabel to ${finding.other_label}:`, () => put(`${path}${kind}`, { label: finding.other_label }), `Relabelled to ${finding.other_label}.`);
  }
  button("Remove it", "Remove", () => remove(`${path}${kind}`), "Removed.");
  return buttons;
}
