// Tabs with code (arrows move between them), and buttons that copy.

import { announce } from "./net.js";

const SHOWN_MS = 1500;

/** Lets the tabs of a section be chosen. */
export function followTabs(section) {
  const tabs = [...(section?.querySelectorAll("[role=tab]") ?? [])];
  function choose(tab) {
    for (const each of tabs) {
      each.setAttribute("aria-selected", String(each === tab));
      each.tabIndex = each === tab ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = each !== tab;
    }
  }
  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: k - 1, ArrowRight: k + 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs[(to + tabs.length) % tabs.length];
      choose(next);
      next.focus();
    });
  });
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const words = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
    announce("Copied.");
  } catch {
    button.textContent = "select and copy";
    announce("The browser does not allow copying; select the text instead.");
  }
  setTimeout(() => (button.textContent = words), SHOWN_MS);
});
