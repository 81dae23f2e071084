// The stage of the federation: not started, joining, running, finished or stopped. Each stage has its own section.

import { $, count, el, isNumber, percent, setText } from "./dom.js";
import { outcomes, wayOf } from "./outcomes.js";

const LOOPBACK = /^(localhost|127\.[\d.]+|\[::1\])$/;
const HEADLINES = [
  ["local", "Alone", "each device trained by itself"],
  ["federated", "Together", "one model for all devices"],
  ["shipped", "Yours", "the model that each device keeps"],
];

export function stageOf(state) {
  if (!state.phase) return Object.keys(state.devices ?? {}).length ? "running" : "empty";
  return ["joining", "done", "stopped"].includes(state.phase) ? state.phase : "running";
}

export function title(state) {
  if (!state.federation) return "edgefl dashboard";
  const words = { empty: "waiting", joining: "joining", done: "finished", stopped: "stopped" };
  return `${state.federation}: ${words[stageOf(state)] ?? `round ${state.round ?? 0} of ${state.rounds ?? "?"}`}`;
}

const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;

const someOf = (ids) => `${ids.slice(0, 4).join(", ")}${ids.length > 4 ? ` and ${ids.length - 4} more` : ""}`;

// Returns the first broker of a list, and the name of its host.
function brokerOf(state) {
  const url = String(state.broker?.url ?? "").split(",")[0];
  return { url, host: /^\w+:\/\/(?:[^@/]*@)?(\[[^\]]*\]|[^:/?]*)/.exec(url)?.[1] ?? "" };
}

function command(text) {
  const box = el("div", { class: "command" }, el("pre", { tabindex: "0", role: "region", "aria-label": "command" },
    el("code", {}, ...text.split(" ").flatMap((word, i) => [i ? " " : null, el("span", { class: "word" }, word)]))));
  if (navigator.clipboard) {
    const button = el("button", { type: "button" }, "Copy");
    button.addEventListener("click", () => navigator.clipboard.writeText(text).then(() => setText(button, "Copied"), () => {}));
    box.append(button);
  }
  return box;
}

function deviceStart(state) {
  const { url } = brokerOf(state), ids = new Set(Object.keys(state.devices ?? {}));
  let number = 1;
  while (ids.has(`pi-${number}`)) number += 1;
  const name = `pi-${number}`;
  if (url.startsWith("mqtts:")) return `edgefl device start --enrol ${name}.enrol --data ${name}.npz`;
  return `edgefl device start --broker ${url} --id ${name} --data ${name}.npz`;
}

function remarks(state) {
  const { url, host } = brokerOf(state), list = [];
  if (url.startsWith("mqtts:")) list.push(["Each device needs a file of keys from ", el("code", {}, "edgefl device enrol"), "."]);
  else list.push(["Each device needs its own name and its own data. ", el("code", {}, "edgefl device start --help"), " lists the kinds of data."]);
  if (LOOPBACK.test(host)) list.push(["On another machine, use the address of the broker's machine instead of ", el("code", {}, host), "."]);
  return list.map((parts) => el("p", { class: "muted small" }, ...parts));
}

function empty(state) {
  setText($("waiting"), state.notice ?? "Waiting for a federation…");
  const { url } = brokerOf(state), secure = url.startsWith("mqtts:");
  $("empty-steps").hidden = !url;
  const signature = `${url} ${state.federation}`;
  if (!url || $("empty-steps").dataset.signature === signature) return;
  $("empty-steps").dataset.signature = signature;
  $("empty-steps").replaceChildren(
    el("p", {}, "Start the aggregator, then a device. This page updates itself."),
    command(`edgefl aggregator start --broker ${url}${secure ? " --security broker" : ""}`),
    command(deviceStart(state)),
    el("p", { class: "muted small" }, "No ", el("code", {}, "federation.toml"), " yet? ", el("code", {}, "edgefl init --data pi-1.npz --data pi-2.npz"), " writes one."),
  );
}

function joining(state) {
  const devices = Object.values(state.devices ?? {}).sort((a, b) => a.id.localeCompare(b.id, "en", { numeric: true }));
  const ready = devices.filter((device) => device.state === "idle"), needed = isNumber(state.needed) ? state.needed : 0;
  const missing = Math.max(0, needed - ready.length), unheard = Math.max(0, needed - devices.length);
  setText($("joining-title"), !needed ? `Waiting for devices: ${count(ready.length)} ready` : missing
    ? `Waiting for ${count(missing)} of ${plural(needed, "device")}` : `${plural(ready.length, "device")} ready. The first round begins`);
  const signature = JSON.stringify([needed, state.broker?.url, devices.map(({ id, state: word, why, samples }) => [id, word, why, samples])]);
  if ($("joining").dataset.signature === signature) return;
  $("joining").dataset.signature = signature;
  const slot = (kind, sign, name, note) => el("li", { class: `slot ${kind}` }, el("span", { class: "sign", "aria-hidden": "true" }, sign), name ? el("strong", {}, name) : null, el("span", { class: "muted" }, note));
  $("slots").replaceChildren(
    ...devices.map((device) => (device.state === "idle"
      ? slot("ready", "✓", device.id, `ready, ${plural(device.samples ?? 0, "sample")}`) : slot("away", "–", device.id, device.why || device.state))),
    ...Array.from({ length: Math.min(unheard, 12) }, () => slot("open", "…", "", "not online yet")),
  );
  $("joining-steps").replaceChildren(...(missing || !needed ? [el("p", {}, "On each missing device, run:"), command(deviceStart(state)), ...remarks(state)] : []));
}

function stopped(state) {
  if (state.stopped_because) {
    setText($("stopped-note"), `The federation was stopped: ${state.stopped_because}.`);
    $("stopped-steps").replaceChildren();
    return;
  }
  const devices = Object.values(state.devices ?? {}).filter((device) => device.state !== "offline").length;
  setText($("stopped-note"), `It stopped before the end. ${plural(devices, "device")} ${devices === 1 ? "waits" : "wait"} for it. Start it again with the same options, and it continues where it stopped:`);
  if ($("stopped-steps").childElementCount) return;
  $("stopped-steps").replaceChildren(command("edgefl aggregator start"));
}

const modelOf = (kind) => (kind === "blend" ? "a blend of models" : `the ${kind} model`);
const kindsIn = (kinds) => kinds.map(([kind, n], i) => `${i ? count(n) : `${plural(n, "device")} ${n === 1 ? "keeps" : "keep"}`} ${modelOf(kind)}`).join(", ");

function gainText(points, overall) {
  if (Math.abs(points) < 0.05) return "the same as alone";
  const text = `${points > 0 ? "▲" : "▼"} ${Math.abs(points).toFixed(1)} points ${points > 0 ? "above" : "below"} alone`;
  return overall === "as good" ? `${text}, within chance` : text;
}

// Returns a tile with a mean in per cent and its explanation.
function headline([key, name, note], results, means) {
  const value = means[key];
  const parts = [el("h3", {}, name), el("p", { class: "huge" }, percent(value)), el("p", { class: "muted" }, isNumber(value) ? note : "not measured")];
  if (key === "shipped") {
    if (isNumber(results.gain)) parts.push(el("p", { class: "gain", "data-way": wayOf(results.overall, results.gain) }, gainText(results.gain, results.overall)));
    if (results.kinds.length) parts.push(el("p", { class: "muted" }, kindsIn(results.kinds)));
    if (isNumber(means.int8)) parts.push(el("p", { class: "muted" }, `as int8: ${percent(means.int8)}`));
  }
  return el("div", { class: `tile ${key}` }, ...parts);
}

// Returns why expected figures are missing, or an empty string.
function missingFigures(state) {
  if (state.differential_privacy) return "Differential privacy is on, so the aggregator publishes no figures and no verdict. They are in its result.json; edgefl report shows them.";
  if (!state.verdict) return "The broker has no verdict of this federation. edgefl report shows the aggregator's result.";
  return state.verdict.devices && !state.verdict.rows.length ? "Updates are masked, so the verdict contains no figures of single devices." : "";
}

function result(state) {
  const results = outcomes(state), devices = Object.values(state.devices ?? {});
  const { measured } = results;
  const lost = devices.filter((device) => device.state === "offline").map((device) => device.id);
  const note = [`${plural(state.rounds ?? 0, "round")}.`];
  if (measured) note.push(`${plural(measured, "device")} ended with ${measured === 1 ? "its own model" : "their own models"}.`);
  note.push(missingFigures(state));
  const late = devices.filter((device) => device.state === "finished" && device.why).map((device) => device.id);
  if (late.length) note.push(`${someOf(late)} finished too late for the verdict.`);
  if (lost.length) note.push(`${someOf(lost)} left before the end.`);
  setText($("result-note"), note.filter(Boolean).join(" "));
  setText($("result-sentence"), results.sentence);
  $("result-sentence").hidden = !results.sentence;
  const signature = JSON.stringify([results.means, results.gain, results.overall, results.kinds]);
  $("headline").hidden = !measured;
  if ($("headline").dataset.signature === signature) return;
  $("headline").dataset.signature = signature;
  $("headline").replaceChildren(...HEADLINES.map((each) => headline(each, results, results.means)));
}

const VIEWS = { empty, joining, stopped, done: result };

export function stage() {
  return (state) => VIEWS[stageOf(state)]?.(state);
}
