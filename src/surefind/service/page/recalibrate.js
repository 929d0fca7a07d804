// Upkeep while serving: calibrate again from reviews or from the items, and copy the gallery.
import { make, percent } from "./dom.js";
import { SLOW, get, post } from "./server.js";

// A button that is pressed once at a time, and says what it does.
function action(page, id, text, doing, said, act) {
  const button = make("button", { type: "button", id, disabled: true }, text);
  button.addEventListener("click", async () => {
    button.disabled = true;
    said.textContent = doing;
    if (!(await page.attempt(act))) said.textContent = "";
    button.disabled = false;
  });
  return button;
}

const section = (id, title, ...parts) => make("section", { "aria-labelledby": id }, make("h3", { id }, title), ...parts);

// The first line of the summary.
const promise = ({ summary }) => summary.split("\n")[0];

export function recalibration(page, reload) {
  const counts = make("p", { id: "sample" });
  const result = make("p", { id: "recalibrated", role: "status" });
  const button = action(page, "recalibrate", "Calibrate again from reviews", "Calibrating …", result, async () => {
    const found = await post("/v1/calibration", { with_reviews: true }, SLOW);
    await reload(`Calibrated again with ${found.reviewed} reviewed random checks. ${promise(found)}`);
  });
  page.attempt(async () => {
    const { share, usable, needed, summary } = (await get("/v1/calibration")).reviews;
    counts.textContent = share || usable
      ? `${summary} At least ${needed} are needed; ${percent(share, 1)} of all queries are checked.`
      : "No random share of the queries is checked. Start the service with --review-share 0.02 to collect some: doubtful queries alone would mislead a calibration.";
    button.disabled = usable < needed || !page.gallery?.may_write;
  });
  return section("reviews-title", "Learn from reviews", counts, button, result);
}

export function calibrationFromItems(page, reload) {
  const number = (id, value) => make("input", { type: "number", id, value, min: 0.1, max: 99, step: 0.1, inputmode: "decimal" });
  const wrong = number("items-wrong", Number((100 * (page.calibration?.max_wrong ?? 0.01)).toPrecision(6))), unknown = number("items-unknown", 50);
  const said = make("p", { id: "items-calibrated", role: "status" });
  const button = action(page, "calibrate-items", "Calibrate from the items", "Calibrating, which may take a minute …", said, async () => {
    const asked = { from_items: true, max_wrong: wrong.value / 100, unknown_share: unknown.value / 100 };
    const found = await post("/v1/calibration", asked, SLOW);
    await reload(`Calibrated from the items. ${promise(found)}`);
  });
  button.disabled = !page.gallery?.may_write;
  const field = (input, text) => make("span", { class: "field" }, make("label", { for: input.id }, text), input);
  return section(
    "from-items-title",
    "Calibrate without queries",
    make("p", { class: "quiet" }, "The gallery's own items play the queries, each left out, and some with their whole label. The promise is then about queries like the items. It takes the place of the calibration that there is."),
    make("div", { class: "controls" }, field(wrong, "Wrong matches at most, %"), field(unknown, "Unknown queries to expect, %"), button),
    said,
  );
}

export function snapshots(page) {
  const said = make("p", { id: "snapshot-made", role: "status" });
  const button = action(page, "snapshot", "Make a snapshot", "Copying …", said, async () => {
    const made = await post("/v1/snapshot", {}, SLOW);
    said.textContent = `${made.name}, in the service's folder of snapshots.`;
  });
  button.disabled = !page.gallery?.may_write;
  return section("snapshots-title", "Snapshots", make("p", { class: "quiet" }, "Copies of the gallery as it is at one moment; searches and changes go on."), button, said);
}
