// What every page does: the switch of colours, times in the reader's zone, and a line when the service is gone.

import { lost } from "./net.js";

const chosen = document.getElementById("theme");
if (chosen) {
  chosen.value = document.documentElement.dataset.theme ?? "";
  chosen.addEventListener("change", () => {
    if (chosen.value) document.documentElement.dataset.theme = chosen.value;
    else delete document.documentElement.dataset.theme;
    try { localStorage.setItem("remat.theme", chosen.value); } catch { /* a browser that keeps nothing */ }
    document.dispatchEvent(new Event("remat:theme"));
  });
}

/** Every `<time>` below `root` says when it was in the reader's own zone when pointed at. */
function zoned(root) {
  for (const time of root.querySelectorAll("time[datetime]"))
    time.title = new Date(time.dateTime).toLocaleString();
}

zoned(document);
document.addEventListener("htmx:after:swap", () => zoned(document));
document.addEventListener("htmx:error", lost);
