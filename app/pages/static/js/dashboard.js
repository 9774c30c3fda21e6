// The dashboard: charts by day for the rows that are shown, and the address on the clipboard.

import { chart } from "./chart.js";
import { share } from "./format.js";
import { json, tell } from "./net.js";

let charts = null;

async function trends() {
  const found = document.getElementById("found");
  const days = await json(found.dataset.trends).catch(() => null);
  if (!days) return;
  const section = document.querySelector("section[aria-labelledby=by-day]");
  section.hidden = days.day.length === 0;
  if (section.hidden) return;
  const x = days.day.map((day) => Date.parse(`${day}T00:00:00Z`) / 1000);
  const saved = [{ label: "saved", colour: "after", values: days.saved }];
  const made = [
    { label: "plans", colour: "before", values: days.plans, bars: true },
    { label: "over budget", colour: "bad", values: days.over_budget, bars: true },
  ];
  if (charts) {
    charts[0](x, saved);
    charts[1](x, made);
  } else {
    const percent = (v) => share(v, 0);
    charts = [
      chart(document.getElementById("saved-by-day"), { x, series: saved, days: true, format: percent }),
      chart(document.getElementById("plans-by-day"), { x, series: made, days: true, format: (v) => (Number.isInteger(v) ? String(v) : "") }),
    ];
  }
  const last = days.day.length - 1;
  document.getElementById("saved-by-day").ariaLabel =
    `Share of the peak saved on ${days.day.length} days, ${share(days.saved[0])} on ${days.day[0]}, ${share(days.saved[last])} on ${days.day[last]}`;
  document.getElementById("plans-by-day").ariaLabel =
    `Plans made on ${days.day.length} days, ${days.plans.reduce((a, b) => a + b, 0)} in all`;
}

document.addEventListener("click", async (event) => {
  if (event.target.id !== "share") return;
  try {
    await navigator.clipboard.writeText(location.href);
    tell("The address is on the clipboard.");
    event.target.textContent = "Copied";
  } catch {
    tell("The browser does not let the address be copied; take it from the address bar.");
    event.target.textContent = "See address bar";
  }
});
// Typing asks already; leaving the field for a link must not ask once more, past the link.
document.getElementById("model").addEventListener("change", (event) => event.stopPropagation());
document.addEventListener("htmx:after:swap", trends);
trends();
