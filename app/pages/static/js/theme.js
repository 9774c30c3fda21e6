// Colours of the style sheet, for what is drawn on a canvas.

const probe = document.createElement("span");
probe.hidden = true;

/** The colour that `--name` of remat.css has now, as `rgb(...)`. */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** Calls `draw` whenever light turns dark or back; call it once yourself to begin with. */
export function onTheme(draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.addEventListener("remat:theme", draw);
}
