// The share of each client's samples that its gate sends to each expert: one bar per client, one colour and number per expert.

import { $, collator, dataTable, percent } from "./dom.js";
import { clipped, onWidth, picture } from "./canvas.js";
import { swatches } from "./clusters.js";
import { category, css, ink, onTheme } from "./palette.js";

const LABELS = 84, ROW = 17;

export function gates() {
  const image = picture($("box-gates"), "Use of experts by client");
  let rows = [], experts = 0, names = [], last = "";
  const name = (e) => names[e] ?? `expert ${e}`;
  const short = (e) => (names[e] ?? "").replace(/^expert /, "") || String(e);

  function draw() {
    const width = image.box.clientWidth;
    if (!rows.length || !width) return;
    const long = Math.max(60, Math.min(width, 900) - LABELS - 4);
    const cells = {
      x: LABELS, y: 0, width: long, height: ROW, columns: 1, rows: rows.length,
      describe: (_, r) => `${rows[r].id}: ${rows[r].gate.map((share, e) => `${name(e)} ${percent(share)}`).join(", ")}`,
    };
    image.draw(LABELS + long + 2, ROW * rows.length, cells, (context) => {
      rows.forEach(({ id, gate }, r) => {
        const all = gate.reduce((sum, share) => sum + Math.max(0, share), 0) || 1;
        context.fillStyle = css("--text");
        context.textAlign = "right";
        context.fillText(clipped(context, id, LABELS - 8), LABELS - 6, (r + 0.5) * ROW);
        context.textAlign = "center";
        let x = LABELS;
        gate.forEach((share, e) => {
          const part = (Math.max(0, share) / all) * long;
          context.fillStyle = category(e);
          context.fillRect(x, r * ROW + 1, Math.max(part - 1, 0), ROW - 2);
          context.fillStyle = ink(category(e));
          if (part > context.measureText(short(e)).width + 6) context.fillText(short(e), x + part / 2, (r + 0.5) * ROW + 0.5);
          x += part;
        });
      });
    });
  }

  onWidth(image.box, draw);
  onTheme(draw);
  const again = dataTable($("table-gates"), () => "Share of each expert in each client's mixture",
    () => ["Client", ...Array.from({ length: experts }, (_, e) => name(e))], () => rows.map(({ id, gate }) => [id, ...gate.map(percent)]));
  return (state) => {
    const gated = Object.values(state.devices ?? {}).filter((device) => Array.isArray(device.gate) && device.gate.length);
    gated.sort((a, b) => collator(a.id, b.id));
    const signature = JSON.stringify([state.experts, gated.map(({ id, gate }) => [id, gate])]);
    if (signature === last) return;
    [rows, last, names] = [gated, signature, state.experts ?? []];
    experts = Math.max(0, ...rows.map(({ gate }) => gate.length));
    $("box-gates").closest("figure").hidden = !rows.length;
    $("note-gates").textContent = `Mean weight of the gate over the client's held-out samples.`;
    swatches($("legend-gates"), Array.from({ length: experts }, (_, e) => ({ index: e, label: name(e) })));
    image.label(`Bars of ${rows.length} clients by ${experts} experts. Read them with the arrow keys, or the table below.`);
    draw();
    again();
  };
}
