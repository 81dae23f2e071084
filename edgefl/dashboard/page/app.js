// Takes the stream, keeps the state, and shows each part that changed: once a frame, and nothing while nobody looks.

import { $, setText, span } from "./dom.js";
import { applyPatch } from "./patch.js";
import { clients, curves } from "./curves.js";
import { clusters } from "./clusters.js";
import { devices } from "./devices.js";
import { gates } from "./gates.js";
import { round } from "./round.js";

const PATIENCE_S = 15;
let state = Object.create(null), behind = 0, heard = performance.now(), source = null, planned = false;
let stale = new Set();

// This machine's clock may differ from the server's: times are told by the server's.
const clock = () => Date.now() / 1000 + behind;

const parts = { round: round(clock), devices: devices(clock) };
const showing = [
  [["federation", "phase", "round", "rounds", "deadline_s", "round_started_ts", "devices", "history", "broken", "cohort_size"], parts.round.update],
  [["history"], curves()], [["devices"], clients()], [["devices"], gates()], [["clusters"], clusters()], [["devices"], parts.devices.update],
];

function connect() {
  source?.close();
  source = new EventSource("events");
  for (const kind of ["whole", "patch", "tick"]) source.addEventListener(kind, (event) => take(kind, JSON.parse(event.data)));
  source.onerror = () => {
    health(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000); // the server said no: it may say yes later
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

function show() {
  if (document.hidden || !stale.size) return;
  const changed = stale;
  stale = new Set();
  const found = Boolean(state.phase), any = Object.keys(state.devices ?? {}).length > 0;
  $("waiting").hidden = found || any;
  for (const [id, there] of [["round", found], ["curves", Object.keys(state.history ?? {}).length > 0], ["clients", any], ["devices", any]]) $(id).hidden = !there;
  setText($("federation"), state.federation || "edgefl");
  setText($("subtitle"), state.federation ? "federation" : "");
  document.title = state.federation ? `${state.federation}: round ${state.round ?? 0} of ${state.rounds ?? "?"}` : "edgefl dashboard";
  for (const [keys, update] of showing) {
    if (keys.some((key) => changed.has(key))) update(state);
  }
}

// Whether what is shown is what is: the server may be gone, or the broker behind it.
function health(answers) {
  const broker = state.broker ?? {};
  const text = !answers
    ? "The dashboard's server does not answer; what is shown is old. Trying again…"
    : broker.connected === false
      ? `The broker ${broker.url ?? ""} has been gone for ${span(clock() - (broker.since_ts ?? clock()))}; waiting for it.`
      : broker.url ? `live from ${broker.url}` : "Connecting…";
  setText($("link"), text);
  $("link").dataset.health = !answers || broker.connected === false ? "bad" : "good";
  setText($("footer"), state.session ? `Session ${state.session}.` : "");
  if (!state.phase) setText($("waiting"), state.notice ?? "Waiting for a federation…");
}

document.addEventListener("visibilitychange", () => !document.hidden && plan());
setInterval(() => {
  const answers = performance.now() - heard < PATIENCE_S * 1000 && source.readyState === EventSource.OPEN;
  health(answers);
  if (!answers && performance.now() - heard > 2 * PATIENCE_S * 1000) { // a connection that is open and says nothing
    heard = performance.now();
    connect();
  }
  if (!document.hidden) Object.values(parts).forEach((part) => part.tick());
}, 1000);
connect();
