// Audit: items that are probably mislabelled, duplicated, confused or unusable, and impostors; to be mended here.
import { $, itemPicture, make } from "./dom.js";
import { SLOW, get, itemPath, put, remove } from "./server.js";

const KINDS = {
  mislabelled: "Probably mislabelled",
  duplicate: "Near-duplicates under different labels",
  confusion: "Labels confused with one another",
  unusable: "Hardly usable",
  impostor: "Impostors: without their label, items are a match with another",
};

export function setUpAudit(page) {
  $("look").addEventListener("click", () => look(page));
}

// It takes the service a while, so that whoever may only read cannot ask for it.
export function showAudit(page) {
  if (page.gallery.may_write) return;
  $("look").disabled = true;
  $("audit-status").textContent = "Your token may read but not ask for an audit.";
}

async function look(page) {
  $("look").disabled = true;
  $("audit-status").textContent = "Looking …";
  await page.attempt(async () => {
    const found = await get("/v1/audit", SLOW);
    page.suspects = new Map(found.findings.filter(({ kind }) => kind === "mislabelled").map((one) => [JSON.stringify(one.id), one]));
    $("audit-said").replaceChildren(...found.sentences.map((sentence) => make("li", {}, sentence)));
    $("findings").replaceChildren(...Object.keys(KINDS).map((kind) => group(page, kind, found.findings.filter((f) => f.kind === kind))).filter(Boolean));
  });
  $("audit-status").textContent = "";
  $("look").disabled = false;
}

function group(page, kind, findings) {
  if (!findings.length) return null;
  const list = make("ul", { class: "findings" }, ...findings.map((finding) => card(page, finding)));
  return make("section", { "aria-labelledby": `audit-${kind}` }, make("h3", { id: `audit-${kind}` }, KINDS[kind]), list);
}

function card(page, finding) {
  const done = make("p", { role: "status" });
  const pair = finding.id === null ? null : make(
    "div",
    { class: "pair" },
    figure(finding.id, finding.label, finding.image),
    finding.other_id === null ? null : figure(finding.other_id, null, finding.other_image),
  );
  return make("li", { class: "card" }, pair, make("p", {}, finding.sentence), ...mending(page, finding, done), done);
}

function figure(id, label, image) {
  return make("figure", {}, itemPicture({ id, label, image }), make("figcaption", {}, label === null ? null : make("strong", {}, String(label)), make("span", { class: "quiet" }, ` ${id}`)));
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
  const { suggested } = finding;
  if (finding.kind === "mislabelled") button(`It is ${suggested}`, `Relabel to ${suggested}:`, () => put(`${path}${kind}`, { label: suggested }), `Relabelled to ${suggested}.`);
  button("Remove it", "Remove", () => remove(`${path}${kind}`), "Removed.");
  return buttons;
}
