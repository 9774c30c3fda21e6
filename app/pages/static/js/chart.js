// Small charts by uPlot, in the colours of the page; drawn anew when those change or the place grows.

import { colour, onTheme } from "./theme.js";

const DAY_S = 86400;

/**
 * A chart in `place`. `series` are {label, colour, values, bars?, dash?}; `x` are numbers, days as seconds since 1970
 * when `days` is set. Returns a function that shows other figures.
 */
export function chart(place, { x, series, days = false, height = 180, format = (v) => String(v), xFormat = null, range = null }) {
  let plot = null;
  let said = { x, series };
  function draw() {
    plot?.destroy();
    const axis = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const bars = uPlot.paths.bars({ size: [0.6, 40] });
    plot = new uPlot(
      {
        width: Math.max(200, place.clientWidth),
        height,
        scales: { x: { time: days, range: days ? (u, low, high) => [low - DAY_S / 2, high + DAY_S / 2] : said.x.length > 1 ? undefined : (u, low) => [low - 1, low + 1] }, y: { range: range ?? ((u, low, high) => [Math.min(0, low ?? 0), (high ?? 0) > 0 ? high * 1.08 : 1]) } },
        axes: [
          { ...axis, ...(days ? { values: (u, at) => at.map((s) => (s % DAY_S ? "" : new Date(s * 1000).toISOString().slice(5, 10))) } : xFormat ? { values: (u, at) => at.map(xFormat) } : {}) },
          { ...axis, size: 64, values: (u, at) => at.map(format) },
        ],
        series: [
          { label: days ? "day" : "after", value: (u, v) => (v == null ? "–" : days ? new Date(v * 1000).toISOString().slice(0, 10) : xFormat ? xFormat(v) : v) },
          ...said.series.map((one) => ({
            label: one.label,
            stroke: colour(one.colour),
            fill: one.bars ? colour(one.colour) : undefined,
            width: one.bars ? 0 : 2,
            dash: one.dash,
            paths: one.bars ? bars : one.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
            points: { show: !one.bars && said.x.length < 40, size: 6, fill: colour(one.colour) },
            value: (u, v) => (v == null ? "–" : format(v)),
            spanGaps: true,
          })),
        ],
        tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
        cursor: { drag: { x: false, y: false } },
        legend: { live: true },
      },
      [said.x, ...said.series.map((one) => one.values)],
      place,
    );
  }
  draw();
  onTheme(draw);
  let width = place.clientWidth;
  new ResizeObserver(() => {
    if (place.clientWidth === width || place.clientWidth === 0) return;
    width = place.clientWidth;
    plot.setSize({ width: Math.max(200, width), height });
  }).observe(place);
  return (x, series) => {
    said = { x, series };
    draw();
  };
}
