// Search: an image from this machine, its camera or its clipboard, or an item of the gallery.
import { showAnswer } from "./answer.js";
import { $, make } from "./dom.js";
import { addForm } from "./editor.js";
import { showEvidence } from "./evidence.js";
import { get, itemPath, picture, post, upload } from "./server.js";

export function setUpSearch(page) {
  const drop = $("drop");
  // Elsewhere a camera would be one more way to the same files.
  for (const part of document.querySelectorAll("#camera, label[for='camera']")) part.hidden = !navigator.maxTouchPoints;
  for (const input of [$("file"), $("camera")]) {
    input.addEventListener("change", () => {
      const [file] = input.files;
      if (file) searchFile(page, file);
      input.value = "";
    });
  }
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    const [file] = event.dataTransfer.files;
    if (file) searchFile(page, file);
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find(({ type }) => type.startsWith("image/"));
    if (!file || $("search").hidden || !page.gallery?.images || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    searchFile(page, file);
  });
}

export function describeSearch(gallery) {
  $("file").disabled = $("camera").disabled = !gallery.images;
  if (!gallery.images) {
    $("ways").replaceChildren(
      make("p", {}, "This service has no model, so it cannot read images. ", make("a", { href: "#items" }, "Pick an item of the gallery"), " to search with."),
    );
  }
}

function searchFile(page, file) {
  return run(page, URL.createObjectURL(file), () => upload("/v1/search/image", file), { file });
}

export async function searchItem(page, item) {
  location.hash = "search";
  const [path, kind] = itemPath(item.id);
  const shown = item.image ? await picture(`${path}/image${kind}`).catch(() => null) : null;
  const ask = async () => {
    const { vector, kappa, novelty } = await get(`${path}${kind}`);
    const known = novelty === null ? null : [novelty];
    // An item finds itself: it is no query like those to come.
    return post("/v1/search/vector", { vectors: [vector], kappa: [kappa], novelty: known, k: 11, keep: false, watch: false });
  };
  return run(page, shown, ask, { self: item.id });
}

let latest = 0;

async function run(page, shown, ask, { self = null, file = null }) {
  const turn = ++latest;
  const query = $("query");
  query.hidden = !shown;
  if (shown) {
    query.src = shown;
    query.onload = () => query.classList.toggle("tiny", query.naturalWidth <= 64);
  }
  for (const id of ["answer", "keep", "evidence", "start"]) $(id).replaceChildren();
  $("busy").textContent = "Looking …";
  await page.attempt(async () => {
    try {
      const result = await ask();
      if (turn !== latest) return;
      const [answer] = result.answers;
      $("answer").replaceChildren(showAnswer(result, page.calibration));
      $("evidence").replaceChildren(...showEvidence(answer, self));
      if (file && page.gallery.may_write) $("keep").replaceChildren(addForm(page, file, answer));
      if (answer.review) page.countReviews();
    } finally {
      if (turn === latest) $("busy").textContent = "";
    }
  });
}
