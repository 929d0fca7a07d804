// Calibrate again from reviews: how many random checks there are, how many are needed, and a button.
import { make, percent } from "./dom.js";
import { get, post } from "./server.js";

export function recalibration(page, reload) {
  const counts = make("p", { id: "sample" });
  const result = make("p", { id: "recalibrated", role: "status" });
  const button = make("button", { type: "button", id: "recalibrate", disabled: true }, "Calibrate again from reviews");
  button.addEventListener("click", async () => {
    button.disabled = true;
    result.textContent = "Calibrating …";
    const done = await page.attempt(async () => {
      const found = await post("/v1/calibration", { with_reviews: true });
      await reload(`Calibrated again with ${found.reviewed} reviewed random checks. ${found.summary}`);
    });
    if (!done) {
      result.textContent = "";
      button.disabled = false;
    }
  });
  page.attempt(async () => {
    const { share, usable, needed, summary } = await get("/v1/reviews/sample");
    counts.textContent = share || usable
      ? `${summary} At least ${needed} are needed; ${percent(share, 1)} of all queries are checked.`
      : "No random share of the queries is checked. Start the service with --review-share 0.02 to collect some: doubtful queries alone would mislead a calibration.";
    button.disabled = usable < needed || !page.gallery?.may_write;
  });
  return make("section", { "aria-labelledby": "reviews-title" }, make("h3", { id: "reviews-title" }, "Learn from reviews"), counts, button, result);
}
