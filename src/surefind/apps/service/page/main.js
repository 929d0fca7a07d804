// The page: sections by address, and one place where troubles are shown.
import { setUpAudit } from "./audit.js";
import { setUpBrowse, showBrowse } from "./browse.js";
import { $ } from "./dom.js";
import { setUpReview, showReview } from "./review.js";
import { showRisk } from "./risk.js";
import { describeSearch, setUpSearch } from "./search.js";
import { get, setToken } from "./server.js";
import { setUpSphere, showSphere } from "./sphere.js";
import { showWatch } from "./watch.js";

const SECTIONS = { search: () => {}, browse: showBrowse, review: showReview, risk: showRisk, audit: () => {}, sphere: showSphere };

const REFRESH = 30_000;

const page = {
  gallery: null,
  calibration: null,

  // Does something that may fail; a failure is shown as a sentence with a way to try again.
  async attempt(action) {
    hideTrouble();
    try {
      await action();
      return true;
    } catch (error) {
      if (error.status === 401) $("token-form").hidden = false;
      const again = () => page.attempt(action);
      showTrouble(error.status === undefined ? "The page has a defect; load it again." : error.message, again);
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
    $("waiting").textContent = `${count}`;
    $("waiting").setAttribute("aria-label", `${count} waiting`);
  },
};

let again = null;

function showTrouble(sentence, retry) {
  again = retry;
  $("trouble").querySelector("p").textContent = sentence;
  $("trouble").hidden = false;
}

function hideTrouble() {
  $("trouble").hidden = true;
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

function start() {
  return page.attempt(async () => {
    [page.gallery, page.calibration] = await Promise.all([get("/v1/gallery"), get("/v1/calibration")]);
    const { items, dim, model, calibrated } = page.gallery;
    $("about").textContent = [
      `${items.toLocaleString("en")} items`,
      dim ? `${dim} dimensions` : null,
      model ? `model ${model}` : null,
      calibrated ? null : "not calibrated",
    ].filter(Boolean).join(" · ");
    $("sphere-link").hidden = dim !== 3;
    describeSearch(page.gallery);
    page.countReviews();
    open();
    showWatch(page.calibration);
  });
}

$("trouble").querySelector("button").addEventListener("click", () => again?.());
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken($("token").value);
  $("token-form").hidden = true;
  start();
});
window.addEventListener("hashchange", open);
setInterval(() => page.gallery && !document.hidden && page.refresh(), REFRESH);
setUpSearch(page);
setUpBrowse(page);
setUpAudit(page);
setUpReview(page);
setUpSphere();
open();
start();
