// Curves over rounds (uPlot) and accuracy over clients (rows of dots), each with a table.

import { $, bytes, collator, count, dataTable, fixed, isNumber, percent, setText } from "./dom.js";
import { dots, MARKS } from "./dots.js";
import { FIGURES, measureOf, outcomes, titled } from "./outcomes.js";
import { css, lines, onTheme } from "./palette.js";

const HEIGHT = 220;

class Chart {
  // `make(lines)` returns uPlot's series, bands and axes. It is called again when the theme changes.
  constructor(id, make) {
    [this.box, this.make, this.data] = [$(id), make, null];
    new ResizeObserver(() => this.size()).observe(this.box);
    onTheme(() => this.rebuild());
  }

  width() {
    return Math.max(200, Math.floor(this.box.clientWidth));
  }

  size() {
    if (this.plot && this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: HEIGHT });
    else if (!this.plot && this.data) this.rebuild();
  }

  show(data) {
    this.data = data;
    if (this.plot) this.plot.setData(data);
    else this.rebuild();
  }

  rebuild() {
    if (!this.data || !this.box.clientWidth) return;
    this.plot?.destroy();
    const { xLabel, series, bands, scales, y } = this.make(lines());
    const axis = { stroke: css("--text"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") }, font: "12px system-ui, sans-serif" };
    const options = {
      width: this.width(), height: HEIGHT, bands, scales: { x: { time: false }, ...scales },
      legend: { markers: { dash: (plot, i) => (!plot.series[i].dash ? "solid" : plot.series[i].dash[0] > 4 ? "dashed" : "dotted") } },
      cursor: { y: false, drag: { x: false, y: false } },
      series: [xLabel, ...series.map((one) => ({ width: 2, points: { show: (plot, i) => plot.data[i].filter(isNumber).length < 2 }, ...one }))],
      axes: [{ ...axis, space: 40, incrs: xLabel.incrs, ...(xLabel.show ? { values: (plot, ticks) => ticks.map(xLabel.show) } : {}) }, { ...axis, size: 68, values: (plot, ticks) => ticks.map(y) }],
    };
    this.plot = new window.uPlot(options, this.data, this.box);
    // In uPlot, a mouse can hide a line with the legend, but a keyboard cannot. Here the legend only shows values.
    this.plot.root.querySelector(".u-legend")?.setAttribute("aria-hidden", "true");
  }
}

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
// A legend shows the values under the pointer, or the last values without a pointer.
const atRest = (format) => (plot, value, series) => {
  const shown = isNumber(value) ? value : plot.data[series]?.findLast(isNumber);
  return isNumber(shown) ? format(shown) : "–";
};
const byRound = { label: "round", incrs: WHOLE, value: atRest(String) };

export function curves() {
  let rows = [], measure = "accuracy";
  const loss = new Chart("chart-loss", ([one]) => ({ xLabel: byRound, y: (v) => fixed(v, v < 1 ? 2 : 1), series: [{ label: "loss", ...one, value: atRest((v) => fixed(v)) }] }));
  const accuracy = new Chart("chart-accuracy", ([one]) => ({
    xLabel: byRound, y: (v) => `${Math.round(100 * v)}%`,
    series: [
      { label: "mean", ...one, value: atRest(percent) },
      { label: "p10", stroke: one.stroke, width: 1, dash: [3, 3], value: atRest(percent) },
      { label: "p90", stroke: one.stroke, width: 1, dash: [3, 3], value: atRest(percent) },
    ],
    bands: [{ series: [3, 2], fill: `${one.stroke}33` }],
  }));
  const traffic = new Chart("chart-bytes", ([one, two]) => ({
    xLabel: byRound, y: bytes, scales: { y: { range: (plot, low, high) => [0, (high || 1) * 1.1] } },
    series: [{ label: "up", ...one, value: atRest(bytes) }, { label: "down", ...two, value: atRest(bytes) }],
  }));
  const again = dataTable(
    $("table-rounds"), () => "Results of each round",
    () => ["Round", "Phase", "Updates", "Loss", titled(measure), "10th percentile", "90th percentile", "Up", "Down", "Seconds", "Missing"],
    () => [...rows].reverse().map((r) => [
      r.round, r.phase, r.updates, fixed(r.loss), percent(r.accuracy_mean), percent(r.accuracy_p10), percent(r.accuracy_p90),
      bytes(r.bytes_up), bytes(r.bytes_down), fixed(r.seconds, 1), (r.dropped ?? []).join(", ") || "none",
    ]),
  );
  return (state) => {
    rows = Object.values(state.history ?? {}).sort((a, b) => a.round - b.round);
    // Personalization is not a round: its models differ, and it has no training loss
    const trained = rows.filter((row) => row.phase !== "personalize");
    const show = (chart, id, among, keys) => {
      const measured = among.filter((row) => keys.some((key) => isNumber(row[key])));
      $(id).closest("figure").hidden = !measured.length;
      if (measured.length) chart.show(["round", ...keys].map((key) => measured.map((row) => row[key] ?? null)));
    };
    measure = measureOf(trained.findLast((row) => isNumber(row.accuracy_mean)));
    setText($("title-accuracy"), `${titled(measure)} during the rounds`);
    show(accuracy, "chart-accuracy", trained, ["accuracy_mean", "accuracy_p10", "accuracy_p90"]);
    show(loss, "chart-loss", trained, ["loss"]);
    show(traffic, "chart-bytes", trained, ["bytes_up", "bytes_down"]);
    again();
  };
}

const MOST_ROWS = 40;

// Returns the share of clients with at most each value: [values, shares of kind 1, shares of kind 2, ...]. Each is a staircase from 0 to 1.
export function distribution(columns) {
  const xs = [...new Set(columns.flat())].sort((a, b) => a - b);
  const low = xs.length ? Math.max(0, xs[0] - 0.02) : 0;
  const shares = columns.map((values) => {
    const sorted = [...values].sort((a, b) => a - b);
    let below = 0;
    return [0, ...xs.map((x) => {
      while (below < sorted.length && sorted[below] <= x) below += 1;
      return below / sorted.length;
    })];
  });
  return [[low, ...xs], ...shares];
}

// Shows rows of dots for few clients, and the share of clients with at most each accuracy for many.
export function clients() {
  const showDots = dots($("box-dots"), $("legend-dots"));
  let rows = [], keys = [], last = "", names = "", cdf = null, measure = "accuracy";
  const labels = { ...Object.fromEntries(Object.entries(MARKS).map(([key, [, label]]) => [key, label])) };
  const chart = () => new Chart("chart-cdf", (styles) => ({
    xLabel: { label: measure, value: atRest(percent), show: (v) => `${Math.round(100 * v)}%`, incrs: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5] }, y: (v) => `${Math.round(100 * v)}%`,
    scales: { y: { range: [0, 1.02] } },
    series: keys.slice(0, 3).map((key, i) => ({ label: labels[key], ...styles[i], paths: window.uPlot.paths.stepped({ align: 1 }), value: atRest(percent) })),
  }));
  const again = dataTable(
    $("table-accuracy"), () => `${titled(measure)} of each client`, () => ["Client", ...keys.map((key) => labels[key])],
    () => rows.map((row) => [row.id, ...keys.map((key) => percent(row[key]))]),
  );
  return (state) => {
    const personal = outcomes(state).rows.filter((row) => isNumber(row.shipped));
    const devices = Object.values(state.devices ?? {}).filter((device) => isNumber(device.accuracy)).sort((a, b) => collator(a.id, b.id));
    rows = personal.length ? personal : devices.map(({ id, accuracy }) => ({ id, accuracy }));
    keys = [...FIGURES, "accuracy"].filter((key) => rows.some((row) => isNumber(row[key])));
    const signature = JSON.stringify([keys, rows, measureOf(state)]);
    if (signature === last) return;
    last = signature;
    measure = measureOf(state);
    setText($("title-clients"), `${titled(measure)} of each client`);
    setText($("table-accuracy").querySelector("summary"), `${titled(measure)} by client as a table`);
    const many = rows.length > MOST_ROWS;
    setText($("note-cdf"), !rows.length ? measure === "accuracy" ? "No client has reported an accuracy yet." : "No client has reported a figure yet."
      : `${many ? `Share of ${count(rows.length)} clients with at most this ${measure}` : "One row per client"}, ${
        personal.length ? "measured on the client's own test samples" : "as last reported. The last phase measures the clients' own models"}.${
        many || !rows.some((row) => row.comparison) ? "" : " A line is green where the client's model is better than training alone, red where it is worse, grey where the difference is within chance."}`);
    for (const id of ["legend-dots", "box-dots"]) $(id).hidden = many || !rows.length;
    $("chart-cdf").hidden = !many;
    $("table-accuracy").hidden = !rows.length;
    showDots(many ? [] : rows, keys.filter((key) => key !== "int8"), measure);
    again();
    if (!many) return;
    if (!cdf) cdf = chart();
    const three = keys.slice(0, 3), data = distribution(three.map((key) => rows.map((row) => row[key]).filter(isNumber)));
    if (keys.join() !== names && cdf.plot) {
      cdf.data = data;
      cdf.rebuild();
    } else cdf.show(data);
    names = keys.join();
  };
}
