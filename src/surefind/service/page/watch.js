// Whether the promise still holds: how fresh the calibration is, and whether queries are still like its own.
import { $, count, draw, make, timeText } from "./dom.js";

const ALARM = 100;

// A banner on every view, once queries differ from the calibration's.
export function showWatch(calibration) {
  const watch = calibration?.watch;
  const alarm = Boolean(watch?.alarm);
  if (alarm === $("watch").hidden) {
    // Written only when it changes: a screen reader says it once.
    $("watch").replaceChildren(...(alarm ? alarmText(watch) : []));
    $("watch").hidden = !alarm;
  }
  if (calibration?.calibrated) {
    for (const place of document.querySelectorAll(".freshness")) place.textContent = freshness(calibration);
    $("drift")?.replaceChildren(...drift(calibration));
  }
}

function alarmText({ since, stream, direction }) {
  return [
    make("p", {}, make("strong", {}, `Since ${timeText(since)} queries differ from the calibration's: mostly ${stream} (${direction}).`)),
    make("p", {}, "The promised error rate is about queries like the calibration's. Look at what is sent here now; if it is what you expect, calibrate again with such queries."),
  ];
}

export function freshness({ renewals, made, stale, watch }) {
  const times = renewals === 1 ? "once" : `${renewals.toLocaleString("en")} times`;
  const age = renewals ? `Renewed ${times} since it was calibrated, last at ${timeText(made)}.` : `Calibrated at ${timeText(made)}.`;
  const now = stale ? " Items have changed since; it is being renewed." : " It is for the items that are there now.";
  const seen = !watch || watch.alarm ? "" : ` Nothing says that the ${count(watch.queries, "query", "queries")} seen so far differ from the calibration's.`;
  return age + now + (watch && !watch.queries ? " No query was compared with the calibration's yet." : seen);
}

// The evidence that queries differ, on a log scale from 1 to the alarm.
export function drift({ watch }) {
  const title = make("h3", { id: "drift-title" }, "Drift since calibration");
  if (!watch) return [title, make("p", { class: "quiet" }, "Queries are not compared with the calibration's.")];
  const { capital, queries, alarm, since } = watch;
  const share = Math.min(Math.max(Math.log(Math.max(capital, 1)) / Math.log(ALARM), 0), 1);
  const shown = capital < 10 ? capital.toFixed(1) : Math.round(capital).toLocaleString("en");
  const words = `Evidence that queries differ: ${shown}, an alarm from ${ALARM}`;
  return [
    title,
    draw(
      "svg",
      { class: "gauge", viewBox: "0 0 400 40", role: "img", "aria-label": words },
      draw("rect", { class: "room", width: 400, height: 14 }),
      draw("rect", { class: alarm ? "alarm" : "share", width: Math.max(400 * share, 2), height: 14 }),
      draw("text", { x: 0, y: 34 }, "as calibrated"),
      draw("text", { x: 400, y: 34, "text-anchor": "end" }, "alarm"),
    ),
    make("p", {}, `${words}, after ${count(queries, "query", "queries")}. ${alarm ? `The alarm was raised: they differ since ${timeText(since)}.` : "So far it may be chance."}`),
  ];
}
