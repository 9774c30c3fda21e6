// What every page does: the switch of colours, times in the reader's zone, and a line when the service is gone.

import { lost } from "./net.js";

const chosen = document.getElementById("theme");
if (chosen) {
  chosen.value = document.documentElement.dataset.theme ?? "";
  chosen.addEventListener("change", () => {
    if (chosen.value) document.documentElement.dataset.theme = chosen.value;
    else delete document.documentElement.dataset.theme;
    // A cookie, so that pages come in these colours: asking the browser's own store first would hold up every page.
    document.cookie = `remat_theme=${chosen.value}; Path=/; Max-Age=${chosen.value ? 31536000 : 0}; SameSite=Lax`;
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
