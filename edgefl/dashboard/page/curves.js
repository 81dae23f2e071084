// Lines over rounds, and the distribution over clients: uPlot, with a table beside it.

import { $, bytes, collator, count, dataTable, fixed, isNumber, percent } from "./dom.js";
import { css, lines, onTheme } from "./palette.js";

const HEIGHT = 220;

class Chart {
  // `make(lines)` gives uPlot's series, bands and axes; they are made anew when the theme changes.
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
    // uPlot would let a mouse hide a line by its legend, a keyboard not: the legend only shows
    this.plot.root.querySelector(".u-legend")?.setAttribute("aria-hidden", "true");
  }
}

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
const byRound = { label: "round", incrs: WHOLE };
const atRest = (format) => (plot, value) => (value === null || value === undefined ? "–" : format(value));

export function curves() {
  let rows = [];
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
    $("table-rounds"), () => "What each round gave",
    () => ["Round", "Phase", "Updates", "Loss", "Accuracy", "10th percentile", "90th percentile", "Up", "Down", "Seconds", "Missing"],
    () => [...rows].reverse().map((r) => [
      r.round, r.phase, r.updates, fixed(r.loss), percent(r.accuracy_mean), percent(r.accuracy_p10), percent(r.accuracy_p90),
      bytes(r.bytes_up), bytes(r.bytes_down), fixed(r.seconds, 1), (r.dropped ?? []).join(", ") || "nobody",
    ]),
  );
  return (state) => {
    rows = Object.values(state.history ?? {}).sort((a, b) => a.round - b.round);
    const column = (key) => rows.map((row) => row[key] ?? null);
    const x = column("round");
    $("chart-accuracy").closest("figure").hidden = !column("accuracy_mean").some(isNumber);
    loss.show([x, column("loss")]);
    accuracy.show([x, column("accuracy_mean"), column("accuracy_p10"), column("accuracy_p90")]);
    traffic.show([x, column("bytes_up"), column("bytes_down")]);
    again();
  };
}

const KINDS = [["accuracy_federated", "federated"], ["accuracy_mixture", "mixture"], ["accuracy_int8", "int8"]];

// Shares of clients with at most each value: [values, shares of kind 1, shares of kind 2, ...], as one staircase from 0 to 1 each.
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

export function clients() {
  let told = [], devices = [], kinds = KINDS, names = "";
  const chart = () => new Chart("chart-cdf", (styles) => ({
    xLabel: { label: "accuracy", value: atRest(percent), show: (v) => `${Math.round(100 * v)}%`, incrs: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5] }, y: (v) => `${Math.round(100 * v)}%`,
    scales: { y: { range: [0, 1.02] } },
    series: kinds.map(([, label], i) => ({ label, ...styles[i], paths: window.uPlot.paths.stepped({ align: 1 }), value: atRest(percent) })),
  }));
  let cdf = null;
  const again = dataTable(
    $("table-accuracy"), () => "Accuracy of each client's own held-out samples", () => ["Client", "Last reported", "Federated", "Mixture", "int8"],
    () => devices.map((d) => [d.id, percent(d.accuracy), percent(d.accuracy_federated), percent(d.accuracy_mixture), percent(d.accuracy_int8)]),
  );
  let last = "";
  return (state) => {
    devices = Object.values(state.devices ?? {}).sort((a, b) => collator(a.id, b.id));
    const values = (key) => devices.map((device) => device[key]).filter(isNumber);
    const personal = KINDS.filter(([key]) => values(key).length);
    kinds = personal.length ? personal : [["accuracy", "last reported"]];
    told = kinds.map(([key]) => values(key));
    const signature = JSON.stringify([kinds, told]);
    if (signature === last) return;
    last = signature;
    const reporting = Math.max(...told.map((each) => each.length));
    $("note-cdf").textContent = !reporting
      ? "No client has reported an accuracy yet."
      : `Share of ${count(reporting)} clients with at most that accuracy on their own held-out samples${personal.length ? "" : "; mixtures come with the last phase"}.`;
    $("chart-cdf").hidden = !reporting;
    if (!reporting) return;
    if (!cdf) cdf = chart();
    const data = distribution(told);
    if (kinds.map(([key]) => key).join() !== names && cdf.plot) {
      cdf.data = data;
      cdf.rebuild();
    } else cdf.show(data);
    names = kinds.map(([key]) => key).join();
    again();
  };
}

