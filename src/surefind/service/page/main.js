// The page: sections by address, one place where troubles are shown, and the token.
import { setUpAudit, showAudit } from "./audit.js";
import { $ } from "./dom.js";
import { setUpEditor } from "./editor.js";
import { setUpItems, showItems } from "./items.js";
import { setUpReview, showReview } from "./review.js";
import { showRisk } from "./risk.js";
import { describeSearch, setUpSearch } from "./search.js";
import { get, hasToken, setToken } from "./server.js";
import { showStart } from "./start.js";
import { showWatch } from "./watch.js";

const SECTIONS = { search: showStart, items: showItems, review: showReview, risk: showRisk, audit: showAudit };

const REFRESH = 30_000;

const page = {
  gallery: null,
  calibration: null,
  suspects: null, // what the last audit says of labels, by id

  // Does something that may fail; a failure is shown as a sentence with a way to try again.
  async attempt(action) {
    hideTrouble();
    try {
      await action();
      return true;
    } catch (error) {
      if (error.status === 401) askForToken(error.message);
      else showTrouble(error.status === undefined ? "The page has a defect; load it again." : error.message, error.status, () => page.attempt(action));
      if (error.status === undefined) console.error(error);
      return false;
    }
  },

  // What may have changed meanwhile: the calibration is renewed, and queries are watched.
  async refresh() {
    const found = await get("/v1/calibration").catch(() => null);
    if (!found) return;
    page.calibration = found;
    showWatch(found);
  },

  async countReviews() {
    const found = await get("/v1/reviews?limit=1").catch(() => null);
    if (found) page.showWaiting(found.total);
  },

  showWaiting(count) {
    $("waiting").hidden = !count;
    $("waiting").textContent = count.toLocaleString("en");
    $("waiting").title = `${count} waiting`;
  },

  // After items have changed.
  async recount() {
    page.gallery = await get("/v1/gallery");
    describe(page.gallery);
  },
};

let again = null;

function showTrouble(sentence, status, retry) {
  again = retry;
  $("trouble").querySelector("p").textContent = sentence;
  $("other-token").hidden = status !== 403 || !hasToken();
  $("trouble").hidden = false;
}

function hideTrouble() {
  $("trouble").hidden = true;
}

function askForToken(sentence) {
  $("token-form").hidden = false;
  $("main").hidden = true;
  if (hasToken()) $("token-said").textContent = sentence;
  $("token").select();
}

function open() {
  const name = Object.hasOwn(SECTIONS, location.hash.slice(1)) ? location.hash.slice(1) : "search";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  if (!page.gallery) return;
  SECTIONS[name](page);
  page.refresh();
}

function describe({ items, dim, calibrated }) {
  $("about").textContent = [
    `${items.toLocaleString("en")} ${items === 1 ? "item" : "items"}`,
    dim ? `${dim} dimensions` : null,
    calibrated ? null : "not calibrated",
  ].filter(Boolean).join(" · ");
}

function start() {
  return page.attempt(async () => {
    [page.gallery, page.calibration] = await Promise.all([get("/v1/gallery"), get("/v1/calibration")]);
    $("token-form").hidden = true;
    $("main").hidden = false;
    $("forget-token").hidden = !hasToken();
    describe(page.gallery);
    describeSearch(page.gallery);
    $("add-item").hidden = !page.gallery.may_write || !page.gallery.images;
    page.countReviews();
    open();
    showWatch(page.calibration);
  });
}

function useToken(value) {
  setToken(value);
  $("token").value = "";
  page.gallery = null;
  return start();
}

$("again").addEventListener("click", () => again?.());
$("other-token").addEventListener("click", () => {
  hideTrouble();
  askForToken("Give another token.");
});
$("forget-token").addEventListener("click", () => useToken("").then(() => location.reload()));
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token").value);
});
window.addEventListener("hashchange", open);
setInterval(() => page.gallery && !document.hidden && page.refresh(), REFRESH);
setUpSearch(page);
setUpItems(page);
setUpEditor(page);
setUpAudit(page);
setUpReview(page);
open();
start();
