// Colours of the style sheet, for canvases.

const probe = document.createElement("span");
probe.hidden = true;

/** The current colour `--name` of the style sheet, as `rgb(...)`. */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** Calls `draw` after every change between light and dark; not for the first drawing. */
export function onTheme(draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.addEventListener("remat:theme", draw);
}
