// Filters of the dashboard that the reader saved under a name, in the storage of this browser: name -> URL query.

import { announce } from "./net.js";

const KEY = "remat:saved-filters", MAX_SAVED = 30;
const place = document.getElementById("saved-filters"), list = place.querySelector("ul"), form = place.querySelector("form");

/** The saved filters, of which damaged ones are left out; null if the browser allows no storage. */
function read() {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}") ?? {};
    return Object.fromEntries(Object.entries(stored).filter(([, query]) => typeof query === "string"));
  } catch (error) {
    return error instanceof SyntaxError ? {} : null;
  }
}

/** The filters and the order of the rows as a URL query without defaults, as the service wrote it. */
const current = () => document.getElementById("results").dataset.trends.split("?")[1] ?? "";

function write(saved) {
  try {
    localStorage.setItem(KEY, JSON.stringify(saved));
  } catch {
    announce("The browser does not allow saving.");
  }
  show();
}

function show() {
  const saved = read();
  if (!saved) return;
  const names = Object.keys(saved).sort((a, b) => a.localeCompare(b));
  list.replaceChildren(...names.map((name) => entry(name, saved[name])));
  list.hidden = !names.length;
  form.hidden = !current();
  place.hidden = list.hidden && form.hidden;
}

function entry(name, query) {
  const link = Object.assign(document.createElement("a"), { href: `/?${query}`, textContent: name });
  if (query === current()) link.setAttribute("aria-current", "true");
  const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: "delete", ariaLabel: `Delete the saved filters ${name}` });
  button.addEventListener("click", () => {
    const { [name]: _, ...others } = read() ?? {};
    write(others);
    (list.querySelector("a") ?? document.getElementById("model")).focus();
    announce(`The filters ${name} are deleted.`);
  });
  const item = document.createElement("li");
  item.append(link, " ", button);
  return item;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const name = form.elements.name.value.trim(), saved = read() ?? {};
  if (!name) return;
  if (Object.keys(saved).length >= MAX_SAVED && !(name in saved)) {
    announce(`At most ${MAX_SAVED} filters are saved; delete one.`);
    return;
  }
  write({ ...saved, [name]: current() });
  form.reset();
  announce(`The filters are saved as ${name}.`);
});
document.addEventListener("htmx:after:swap", show);
window.addEventListener("storage", (event) => event.key === KEY && show()); // saved in another tab
show();
