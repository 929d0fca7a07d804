// Whether the promise still holds: how fresh the calibration is, and whether queries are still like its own.
import { $, make, timeText } from "./dom.js";

// A banner on every view, once queries differ from the calibration's.
export function showWatch(calibration) {
  const watch = calibration?.watch;
  const alarm = Boolean(watch?.alarm);
  if (alarm === $("watch").hidden) {
    // Written only when it changes: a screen reader says it once.
    $("watch").replaceChildren(...(alarm ? alarmText(watch) : []));
    $("watch").hidden = !alarm;
  }
  $("freshness")?.replaceChildren(freshness(calibration));
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
  const count = `${watch?.queries.toLocaleString("en")} ${watch?.queries === 1 ? "query" : "queries"}`;
  const seen = !watch || watch.alarm ? "" : ` Nothing says that the ${count} seen so far differ from the calibration's.`;
  return age + now + (watch && !watch.queries ? " No query was compared with the calibration's yet." : seen);
}
