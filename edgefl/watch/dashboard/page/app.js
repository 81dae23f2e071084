// Reads the event stream, keeps the state, and redraws the parts that changed: at most once per frame, never while the page is hidden.

import { $, isNumber, setText, span } from "./dom.js";
import { applyPatch } from "./patch.js";
import { clients, curves } from "./curves.js";
import { clusters } from "./clusters.js";
import { devices } from "./devices.js";
import { gates } from "./gates.js";
import { outcomes } from "./outcomes.js";
import { round } from "./round.js";
import { stage, stageOf, title } from "./stage.js";

const PATIENCE_S = 15;
let state = Object.create(null), behind = 0, heard = performance.now(), source = null, planned = false;
let stale = new Set();

// This machine's clock may differ from the server's. Times are relative to the server's clock.
const clock = () => Date.now() / 1000 + behind;

const parts = { round: round(clock), devices: devices(clock) };
const showing = [
  [["federation", "phase", "round", "rounds", "needed", "devices", "broker", "notice", "verdict", "history", "differential_privacy"], stage()],
  [["federation", "phase", "round", "rounds", "deadline_s", "round_started_ts", "devices", "history", "broken", "cohort_size", "differential_privacy"], parts.round.update],
  [["history"], curves()], [["devices", "verdict", "measure"], clients()], [["devices", "experts"], gates()], [["clusters"], clusters()], [["devices", "verdict", "rounds", "experts", "measure"], parts.devices.update],
];

function connect() {
  source?.close();
  source = new EventSource("events");
  for (const kind of ["whole", "patch", "tick"]) source.addEventListener(kind, (event) => take(kind, JSON.parse(event.data)));
  source.onerror = () => {
    health(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000); // the server refused the stream, and may accept it later
  };
}

function take(kind, data) {
  heard = performance.now();
  if (typeof data.ts === "number") behind = data.ts - Date.now() / 1000;
  if (kind !== "tick") {
    state = kind === "whole" ? applyPatch({}, data) : applyPatch(state, data);
    for (const key of kind === "whole" ? showing.flatMap(([keys]) => keys) : Object.keys(data)) stale.add(key);
    plan();
  }
  health(true);
}

function plan() {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    show();
  });
}

function hasFigures(state) {
  return outcomes(state).rows.length > 0 || Object.values(state.devices ?? {}).some((device) => isNumber(device.accuracy) || device.gate);
}

function show() {
  if (document.hidden || !stale.size) return;
  const changed = stale;
  stale = new Set();
  const now = stageOf(state), any = Object.keys(state.devices ?? {}).length > 0, rounds = Object.keys(state.history ?? {}).length > 0;
  const visible = { empty: now === "empty", joining: now === "joining", stopped: now === "stopped", result: now === "done", curves: rounds, devices: any,
    round: now === "running" || (now === "done" && rounds), clients: ["running", "done"].includes(now) && hasFigures(state) };
  // After the end, the results of single clients follow the overall result
  const next = now === "done" ? $("round") : $("clusters");
  if ($("clients").nextElementSibling !== next) $("main").insertBefore($("clients"), next);
  for (const [id, isVisible] of Object.entries(visible)) $(id).hidden = !isVisible;
  setText($("federation"), state.federation || "edgefl");
  setText($("subtitle"), state.federation ? "federation" : "");
  document.title = title(state);
  document.body.dataset.stage = now;
  for (const [keys, update] of showing) {
    if (keys.some((key) => changed.has(key))) update(state);
  }
  // Order the links like the sections, and hide links to hidden sections
  const links = [...$("parts").querySelectorAll("a")], sections = [...$("main").children];
  const position = (link) => sections.indexOf($(link.hash.slice(1)));
  if (links.some((link, i) => i && position(links[i - 1]) > position(link))) $("parts").append(...links.sort((a, b) => position(a) - position(b)));
  for (const link of links) link.hidden = $(link.hash.slice(1)).hidden;
  $("parts").hidden = links.filter((link) => !link.hidden).length < 2;
}

// Shows whether the page is up to date. The dashboard's server or the broker may be unreachable.
function health(answers) {
  const broker = state.broker ?? {};
  const text = !answers
    ? "The dashboard's server does not answer. This page is out of date. Trying again…"
    : broker.connected === false
      ? `The broker ${broker.url ?? ""} has been unreachable for ${span(clock() - (broker.since_ts ?? clock()))}. Waiting for it.`
      : broker.url ? `live from ${broker.url}` : "Connecting…";
  setText($("link"), text);
  $("link").dataset.health = !answers || broker.connected === false ? "bad" : "good";
  const recipe = state.recipe ? ` Recipe: ${state.recipe}.` : "";
  setText($("footer"), state.session ? `Session ${state.session}.${recipe}` : "");
}

document.addEventListener("visibilitychange", () => !document.hidden && plan());
setInterval(() => {
  const answers = performance.now() - heard < PATIENCE_S * 1000 && source.readyState === EventSource.OPEN;
  health(answers);
  if (!answers && performance.now() - heard > 2 * PATIENCE_S * 1000) { // an open connection without data
    heard = performance.now();
    connect();
  }
  if (!document.hidden) Object.values(parts).forEach((part) => part.tick());
}, 1000);
connect();
