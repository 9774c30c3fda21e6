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

/** Shows every `<time>` in the time zone of the reader, with UTC as a tooltip. */
function showLocalTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime), two = (part) => String(part).padStart(2, "0");
    time.textContent = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
    time.title = `${time.dateTime.slice(0, 19).replace("T", " ")} UTC`;
  }
}

showLocalTimes();
document.addEventListener("htmx:after:swap", showLocalTimes);
document.addEventListener("htmx:error", showOffline);
