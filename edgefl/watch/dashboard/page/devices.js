// One card per device: its state, why it is not in the round, its figures and its last error. Only the first cards are drawn. A filter finds the others.

import { $, bytes, collator, count, dataTable, el, fixed, isNumber, percent, setText, span } from "./dom.js";
import { measureOf, outcomes, titled } from "./outcomes.js";

const CAP = innerWidth < 700 ? 16 : 48;
export const STATES = {
  training: ["▶", "training"], sent: ["✓", "update sent"], idle: ["○", "idle"], paused: ["Ⅱ", "paused"],
  silent: ["?", "silent"], offline: ["×", "offline"], rejected: ["!", "rejected"], finished: ["✔", "finished"],
};
const URGENCY = ["rejected", "silent", "offline", "paused", "training", "sent", "idle", "finished"];
const up = (key) => (a, b) => (a[key] ?? Infinity) - (b[key] ?? Infinity);
const down = (key) => (a, b) => (b[key] ?? -Infinity) - (a[key] ?? -Infinity);
const SORTS = {
  attention: ["needs attention first", (a, b) => Boolean(b.anomaly?.alarm) - Boolean(a.anomaly?.alarm) || URGENCY.indexOf(a.state) - URGENCY.indexOf(b.state)],
  id: ["name", () => 0],
  accuracy: ["lowest accuracy", up("accuracy")],
  loss: ["highest loss", down("loss")],
  slow: ["slowest", down("seconds")],
  memory: ["most memory", down("peak_rss_mb")],
  hot: ["hottest", down("temperature_c")],
  seen: ["longest without a message", up("last_seen_ts")],
  bytes: ["most bytes up", down("bytes_up")],
};

export const sign = (state) => el("span", { class: `state state-${STATES[state] ? state : "idle"}` },
  el("span", { class: "sign", "aria-hidden": "true" }, STATES[state]?.[0] ?? "○"), ` ${STATES[state]?.[1] ?? state}`);

export function wanted(devices, text, state, sort) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (device) => `${device.id} ${device.state} ${device.why ?? ""} ${device.last_error ?? ""} ${device.version ?? ""}`.toLowerCase();
  return devices
    .filter((device) => (!state || device.state === state) && words.every((word) => has(device).includes(word)))
    .sort((a, b) => SORTS[sort][1](a, b) || collator(a.id, b.id));
}

function sparkline(trace) {
  const points = (trace ?? []).filter(([, value]) => isNumber(value));
  if (points.length < 2) return null;
  const values = points.map(([, value]) => value), low = Math.min(...values), high = Math.max(...values);
  const first = points[0][0], wide = points.at(-1)[0] - first || 1;
  const xy = points.map(([round, value]) => `${(2 + ((round - first) / wide) * 116).toFixed(1)},${(26 - ((value - low) / (high - low || 1)) * 22).toFixed(1)}`);
  const make = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const svg = make("svg", { viewBox: "0 0 120 30", class: "spark", role: "img", preserveAspectRatio: "none" });
  svg.setAttribute("aria-label", `rounds ${first} to ${points.at(-1)[0]}: from ${fixed(values[0])} to ${fixed(values.at(-1))}, lowest ${fixed(low)}, highest ${fixed(high)}`);
  svg.append(make("polyline", { points: xy.join(" "), fill: "none", "vector-effect": "non-scaling-stroke" }));
  return svg;
}

// With fewer devices the filters are hidden, because all cards fit on a screen.
const FEW = 6;

function pairs(device, row, state) {
  const rounds = state.rounds, expert = state.experts?.[device.expert];
  const accuracies = row
    ? [["alone", row.local], ["together", row.federated], ["yours", row.shipped], ["as int8", row.int8]] : [[measureOf(device), device.accuracy]];
  const kind = row?.kind ? [["keeps", row.kind]] : [];
  const shown = [
    ["round", isNumber(device.round) && Math.min(device.round, rounds || device.round)], ["samples", device.samples && count(device.samples)],
    ...accuracies.map(([name, value]) => [name, isNumber(value) && percent(value)]), ...kind, ["loss", isNumber(device.loss) && fixed(device.loss)],
    device.gate && expert ? ["most used", expert] : ["assigned to", isNumber(device.expert) && device.expert], ["took", isNumber(device.seconds) && `${fixed(device.seconds, 1)} s`],
    ["memory", isNumber(device.rss_mb) && `${fixed(device.rss_mb, 0)} MB`], ["board", isNumber(device.temperature_c) && `${fixed(device.temperature_c, 0)} °C`],
    ["sent", device.bytes_up > 0 && bytes(device.bytes_up)], ["rejected", device.rejected || false],
  ];
  return shown.filter(([, value]) => value !== undefined && value !== null && value !== false && value !== 0 || value === 0);
}

// Returns the result of a device's anomaly detector as text, or an empty string without one.
export function anomalyText(anomaly) {
  if (!anomaly) return "";
  const score = isNumber(anomaly.score) ? fixed(anomaly.score) : "–", threshold = isNumber(anomaly.threshold) ? fixed(anomaly.threshold) : "–";
  const state = anomaly.alarm ? `Alarm: score ${score} above ${threshold}` : `No alarm: score ${score}, threshold ${threshold}`;
  return `${state}. ${count(anomaly.alarms ?? 0)} alarms in ${count(anomaly.windows ?? 0)} windows.`;
}

function card(device, row, state) {
  const seen = el("span", { class: "seen" });
  // The last error of a finished device is part of `why`
  const error = device.last_error && device.state !== "finished" ? String(device.last_error) : "";
  const node = el("li", { class: "card", "data-id": device.id, "data-state": device.state },
    el("div", { class: "card-head" }, el("h3", {}, device.id), sign(device.state)),
    device.why && device.why !== device.state ? el("p", { class: "why" }, device.why) : null,
    device.anomaly ? el("p", { class: device.anomaly.alarm ? "alarm" : "muted" }, device.anomaly.alarm ? el("span", { "aria-hidden": "true" }, "⚠ ") : null, anomalyText(device.anomaly)) : null,
    el("dl", { class: "pairs" }, ...pairs(device, row, state).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    sparkline(device.trace),
    error ? el("p", { class: "error" }, el("strong", {}, "last error: "), error.length > 300 ? `${error.slice(0, 300)}…` : error) : null,
    el("p", { class: "muted small" }, seen, device.version ? ` · version ${device.version}` : ""));
  return { node, seen };
}

export function devices(clock) {
  const cards = new Map();
  let all = [], shown = [], limit = CAP, latest = {}, results = new Map();

  $("sort").append(...Object.entries(SORTS).map(([key, [label]]) => el("option", { value: key }, label)));
  $("filter-state").append(el("option", { value: "" }, "all"), ...Object.entries(STATES).map(([key, [, label]]) => el("option", { value: key }, label)));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["filter", "filter-state", "sort"]) $(id).addEventListener("input", () => { limit = CAP; draw(); });
  $("more").addEventListener("click", () => {
    const before = Math.min(limit, shown.length);
    limit += CAP;
    draw();
    const next = $("cards").children[before]; // the keyboard focus moves to the first new card
    if (next) {
      next.setAttribute("tabindex", "-1");
      next.focus();
    }
  });

  const again = dataTable($("table-devices"), () => `${Math.min(limit, shown.length)} devices`,
    () => ["Device", "State", "Why", "Round", titled(measureOf(latest)), "Loss", "Seconds", "Memory MB", "°C", "Bytes up", "Last message", "Last error"],
    () => shown.slice(0, limit).map((d) => [d.id, STATES[d.state]?.[1] ?? d.state, d.why ?? "", d.round ?? "–", percent(d.accuracy), fixed(d.loss), fixed(d.seconds, 1),
      fixed(d.rss_mb, 0), fixed(d.temperature_c, 0), bytes(d.bytes_up), ago(d), d.last_error ?? ""]));

  const ago = (device) => (isNumber(device.last_seen_ts) ? `${span(clock() - device.last_seen_ts)} ago` : "never");

  function draw() {
    shown = wanted(all, $("filter").value, $("filter-state").value, $("sort").value || "attention");
    const now = shown.slice(0, limit), list = $("cards"), ids = new Set(now.map(({ id }) => id));
    for (const [id, { node }] of cards) {
      if (!ids.has(id)) {
        node.remove();
        cards.delete(id);
      }
    }
    now.forEach((device, i) => {
      const row = results.get(device.id), signature = JSON.stringify([{ ...device, last_seen_ts: 0 }, row, latest.rounds, latest.experts]);
      let made = cards.get(device.id);
      if (made?.signature !== signature) {
        const fresh = { ...card(device, row, latest), signature };
        made?.node.replaceWith(fresh.node);
        cards.set(device.id, (made = fresh));
      }
      made.device = device;
      if (list.children[i] !== made.node) list.insertBefore(made.node, list.children[i] ?? null);
    });
    setText($("shown"), `${count(now.length)} of ${count(shown.length)} shown${shown.length < all.length ? `, ${count(all.length)} in all` : ""}`);
    $("more").hidden = shown.length <= limit;
    setText($("more"), `Show ${Math.min(CAP, shown.length - limit)} more`);
    tick();
    again();
  }

  function tick() {
    for (const { seen, device } of cards.values()) setText(seen, `last message ${ago(device)}`);
  }

  return {
    tick,
    update(state) {
      all = Object.values(state.devices ?? {});
      latest = state;
      setText($("sort").querySelector("[value=accuracy]"), `lowest ${measureOf(state)}`);
      $("controls").hidden = $("shown").hidden = all.length < FEW && !$("filter").value && !$("filter-state").value;
      results = new Map(outcomes(state).rows.filter((row) => isNumber(row.shipped)).map((row) => [row.id, row]));
      draw();
    },
  };
}
