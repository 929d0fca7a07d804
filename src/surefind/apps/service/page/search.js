// Search: an image from this machine, or an item of the gallery.
import { showAnswer, showEvidence } from "./answer.js";
import { $, make } from "./dom.js";
import { get, itemPath, picture, post, upload } from "./server.js";

export function setUpSearch(page) {
  const drop = $("drop");
  $("file").addEventListener("change", () => {
    const [file] = $("file").files;
    if (file) searchFile(page, file);
    $("file").value = "";
  });
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
}

export function describeSearch(gallery) {
  $("file").disabled = !gallery.images;
  if (!gallery.images) {
    $("drop").querySelector("p").replaceChildren(
      "This service has no model, so it cannot read images. ",
      make("a", { href: "#browse" }, "Pick an item of the gallery"),
      " to search with.",
    );
  }
}

function searchFile(page, file) {
  return run(page, URL.createObjectURL(file), () => upload("/v1/search/image", file), null);
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
  return run(page, shown, ask, item.id);
}

let latest = 0;

async function run(page, shown, ask, self) {
  const turn = ++latest;
  const query = $("query");
  query.hidden = !shown;
  if (shown) {
    query.src = shown;
    query.onload = () => query.classList.toggle("tiny", query.naturalWidth <= 64);
  }
  $("answer").replaceChildren();
  $("evidence").replaceChildren();
  $("busy").textContent = "Looking …";
  await page.attempt(async () => {
    try {
      const result = await ask();
      if (turn !== latest) return;
      $("answer").replaceChildren(showAnswer(result, page.calibration));
      $("evidence").replaceChildren(...showEvidence(result.answers[0], self));
      if (result.answers[0].review) page.countReviews();
    } finally {
      if (turn === latest) $("busy").textContent = "";
    }
  });
}
