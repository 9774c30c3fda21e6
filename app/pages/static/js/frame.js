// On every page: theme, local times, and the banner when the service is unreachable.

import { showOffline } from "./net.js";

const theme = document.getElementById("theme");
if (theme) {
  theme.value = document.documentElement.dataset.theme ?? "";
  theme.addEventListener("change", () => {
    if (theme.value) document.documentElement.dataset.theme = theme.value;
    else delete document.documentElement.dataset.theme;
    // A cookie, so that the service renders pages in this theme; reading local storage first would delay every page.
    document.cookie = `remat_theme=${theme.value}; Path=/; Max-Age=${theme.value ? 31536000 : 0}; SameSite=Lax`;
    document.dispatchEvent(new Event("remat:theme"));
  });
}

/** Adds the local time to every `<time>` as a tooltip. */
function addLocalTimes() {
  for (const time of document.querySelectorAll("time[datetime]"))
    time.title = new Date(time.dateTime).toLocaleString();
}

addLocalTimes();
document.addEventListener("htmx:after:swap", addLocalTimes);
document.addEventListener("htmx:error", showOffline);
