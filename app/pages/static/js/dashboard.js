// Dashboard: charts by day for the filtered rows, rows picked for comparison, and the button that copies the link.

import { chart } from "./chart.js";
import { share } from "./format.js";
import { announce, getJson } from "./net.js";

let updateCharts = null;

function drawCharts(days) {
  const x = days.day.map((day) => Date.parse(`${day}T00:00:00Z`) / 1000);
  const saved = [{ label: "saved", colour: "after", values: days.saved }];
  const created = [
    { label: "plans", colour: "before", values: days.plans, bars: true },
    { label: "over budget", colour: "bad", values: days.over_budget, bars: true },
  ];
  if (updateCharts) {
    updateCharts[0](x, saved);
    updateCharts[1](x, created);
    return;
  }
  const percent = (v) => share(v, 0), integer = (v) => (Number.isInteger(v) ? String(v) : "");
  updateCharts = [
    chart(document.getElementById("saved-by-day"), { x, series: saved, days: true, format: percent }),
    chart(document.getElementById("plans-by-day"), { x, series: created, days: true, format: integer }),
  ];
}

let latest = 0; // number of the latest request

async function showTrends() {
  const own = ++latest, days = await getJson(document.getElementById("results").dataset.trends).catch(() => null);
  if (!days || own !== latest) return; // the filters have changed meanwhile
  const section = document.querySelector("section[aria-labelledby=by-day]");
  section.hidden = days.day.length < 2; // one day is no course of time
  if (section.hidden) return;
  drawCharts(days);
  const last = days.day.length - 1, total = days.plans.reduce((a, b) => a + b, 0);
  document.getElementById("saved-by-day").ariaLabel =
    `Share of the peak saved on ${days.day.length} days, ${share(days.saved[0])} on ${days.day[0]}, ${share(days.saved[last])} on ${days.day[last]}`;
  document.getElementById("plans-by-day").ariaLabel = `Plans created on ${days.day.length} days, ${total} in total`;
}

document.addEventListener("click", async (event) => {
  if (event.target.id !== "share") return;
  try {
    await navigator.clipboard.writeText(location.href);
    announce("The link is on the clipboard.");
    event.target.textContent = "Copied";
  } catch {
    announce("The browser does not allow copying; copy the link from the address bar.");
    event.target.textContent = "See address bar";
  }
});
/** Two to six rows are picked, and the button opens their comparison; one more takes the place of the first. */
const MAX_PICKED = 6;
let picked = [];
document.addEventListener("change", (event) => {
  const id = event.target.dataset?.pick;
  if (!id) return;
  picked = event.target.checked ? [...picked, id].slice(-MAX_PICKED) : picked.filter((each) => each !== id);
  showPicked();
});
function showPicked() {
  for (const box of document.querySelectorAll("[data-pick]")) box.checked = picked.includes(box.dataset.pick);
  const button = document.getElementById("compare-picked");
  if (!button) return;
  button.disabled = picked.length < 2;
  button.textContent = picked.length < 2 ? "Compare plans" : `Compare ${picked.length} plans`;
}
document.addEventListener("click", (event) => {
  if (event.target.id === "compare-picked") location.assign(`/compare?${new URLSearchParams(picked.map((id) => ["plan", id]))}`);
});
document.addEventListener("htmx:after:swap", showPicked);

// Days that the reader enters are days of its time zone; captured, so that htmx sends the zone with the day.
const zone = document.getElementById("zone"), days = [...document.querySelectorAll("#filters [type=date]")];
document.addEventListener("change", (event) => {
  if (!days.includes(event.target)) return;
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "";
  zone.value = own !== "UTC" && days.some(({ value }) => value) ? own : "";
}, { capture: true });

// Typing submits the filters already; on leaving the field for a link, another submit would replace the link's page.
document.getElementById("model").addEventListener("change", (event) => event.stopPropagation());
document.addEventListener("htmx:after:swap", showTrends);
showTrends();
