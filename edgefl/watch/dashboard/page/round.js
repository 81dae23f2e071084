// The open round: number, phase, time left, devices by state, bytes.

import { $, bytes, count, el, fixed, isNumber, setText, span } from "./dom.js";
import { sign, STATES } from "./devices.js";

const PHASES = { joining: "waiting for devices", done: "finished", stopped: "the aggregator stopped", personalize: "devices make their own models" };

export function round(clock) {
  let state = {}, announced = "";

  function tick() {
    const open = isNumber(state.round_started_ts) && isNumber(state.deadline_s) && state.deadline_s > 0 && !Object.hasOwn(PHASES, state.phase ?? "joining");
    const left = open ? state.round_started_ts + state.deadline_s - clock() : 0;
    $("deadline-tile").hidden = !open;
    setText($("deadline"), !open ? "–" : left >= 0 ? span(left) : `${span(-left)} over`);
    $("deadline-bar").max = open ? state.deadline_s : 1;
    $("deadline-bar").value = open ? Math.min(Math.max(left, 0), state.deadline_s) : 0;
  }

  function update(next) {
    state = next;
    const devices = Object.values(state.devices ?? {}), history = Object.values(state.history ?? {});
    const number = isNumber(state.round) ? state.round : 0, rounds = state.rounds ?? 0;
    setText($("round-number"), `Round ${Math.min(number, rounds || number)} of ${rounds || "?"}`);
    setText($("round-phase"), `${PHASES[state.phase] ?? state.phase ?? "no message yet"}${state.cohort_size ? `, cohort of ${count(state.cohort_size)}` : ""}`);
    $("round-progress").max = rounds || 1;
    $("round-progress").value = Math.min(state.phase === "done" ? rounds : Math.max(0, number - 1), rounds || 1);
    const counts = Object.keys(STATES).map((key) => [key, devices.filter((device) => device.state === key).length]);
    const signature = JSON.stringify([counts, state.phase === "done"]);
    if ($("counts").dataset.signature !== signature) {
      $("counts").dataset.signature = signature;
      $("counts").replaceChildren(...counts.filter(([key, n]) => n || (state.phase !== "done" && (key === "sent" || key === "training"))).map(([key, n]) => el("li", { "data-state": key }, el("strong", {}, count(n)), " ", sign(key))));
    }
    const sum = (key) => history.reduce((all, row) => all + (row[key] ?? 0), 0), last = history.filter((row) => row.phase !== "personalize").reduce((a, b) => (a && a.round > b.round ? a : b), null);
    const rows = [
      ["up, all rounds shown", bytes(sum("bytes_up"))], ["down, all rounds shown", bytes(sum("bytes_down"))],
      ["the last round took", last ? (last.seconds < 10 ? `${fixed(last.seconds, 1)} s` : span(last.seconds)) : "–"],
      ["missing in the last round", last ? last.dropped?.length ?? 0 : "–"],
    ];
    if (state.broken) rows.push(["invalid messages", count(state.broken)]);
    $("bytes-tile").hidden = Boolean(state.differential_privacy);
    $("round-note").hidden = !state.differential_privacy || state.phase === "done";
    $("bytes").replaceChildren(...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    const news = `${$("round-number").textContent}, ${$("round-phase").textContent}`;
    if (news !== announced) setText($("announce"), (announced = news));
    tick();
  }

  return { tick, update };
}
