// Small charts by uPlot in the colours of the page; redrawn after a change of theme or size.

import { colour, onTheme } from "./theme.js";

const DAY_S = 86400;
const MIN_WIDTH = 200; // pixels
const dayOf = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);

/**
 * A chart in `place`. `series`: {label, colour, values, bars?, steps?, dash?}; `x`: numbers, or if `days`, seconds since
 * 1970. Returns a function that replaces x and series.
 */
export function chart(place, { x, series, days = false, height = 180, format = String, xFormat = null }) {
  let plot = null;
  let data = { x, series };
  function draw() {
    plot?.destroy();
    const columns = [data.x, ...data.series.map((each) => each.values)];
    plot = new uPlot(optionsOf(data, Math.max(MIN_WIDTH, place.clientWidth), height, days, format, xFormat), columns, place);
  }
  draw();
  onTheme(draw);
  let width = place.clientWidth;
  new ResizeObserver(() => {
    if (place.clientWidth === width || place.clientWidth === 0) return;
    width = place.clientWidth;
    plot.setSize({ width: Math.max(MIN_WIDTH, width), height });
  }).observe(place);
  return (x, series) => {
    data = { x, series };
    draw();
  };
}

function optionsOf({ x, series }, width, height, days, format, xFormat) {
  const line = { stroke: colour("line"), width: 1 };
  const axis = { stroke: colour("faint"), grid: line, ticks: line, font: "12px system-ui, sans-serif" };
  const xLabel = days ? (s) => (s % DAY_S ? "" : dayOf(s).slice(5)) : xFormat;
  const xValue = days ? dayOf : xFormat ?? String;
  return {
    width,
    height,
    scales: { x: { time: days, range: xRange(x, days) }, y: { range: yRange } },
    axes: [
      { ...axis, ...(xLabel ? { values: (u, at) => at.map(xLabel) } : {}) },
      { ...axis, size: 64, values: (u, at) => at.map(format) },
    ],
    series: [
      { label: days ? "day" : "time", value: (u, v) => (v == null ? "–" : xValue(v)) },
      ...series.map((each) => seriesOptions(each, x.length, format)),
    ],
    tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
    cursor: { drag: { x: false, y: false } },
    legend: { live: true },
    hooks: { ready: [markIdle], setCursor: [markIdle] },
  };
}

/** Without a cursor the legend has no values to show. */
function markIdle(plot) {
  plot.root.classList.toggle("idle", plot.cursor.idx == null);
}

function seriesOptions({ label, colour: name, bars, steps, dash }, points, format) {
  const ink = colour(name);
  return {
    label,
    stroke: ink,
    fill: bars ? ink : undefined,
    width: bars ? 0 : 2,
    dash,
    paths: bars ? uPlot.paths.bars({ size: [0.6, 40] }) : steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
    points: { show: !bars && points < 40, size: 6, fill: ink },
    value: (u, v) => (v == null ? "–" : format(v)),
    spanGaps: true,
  };
}

/** Half a day of margin around days, and room around a single point. */
function xRange(x, days) {
  if (days) return (u, low, high) => [low - DAY_S / 2, high + DAY_S / 2];
  return x.length > 1 ? undefined : (u, low) => [low - 1, low + 1];
}

/** From 0, or below, to a margin above the highest value. */
function yRange(u, low, high) {
  return [Math.min(0, low ?? 0), (high ?? 0) > 0 ? high * 1.08 : 1];
}
