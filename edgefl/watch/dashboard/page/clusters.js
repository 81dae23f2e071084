// Similarity of clients (a heat map in the order of the dendrogram above it, with its cut), and cluster membership over time.

import { $, collator, dataTable, el, fixed } from "./dom.js";
import { clipped, onWidth, picture } from "./canvas.js";
import { category, cividis, css, ink, onTheme } from "./palette.js";

const TREE = 96, STRIP = 16, LABELS = 84, ROW = 15, SIDE = 560;

// Returns the leaves of a scipy linkage from left to right. A row is [a, b, height, size], and row i forms cluster n + i.
export function leaves(linkage, n) {
  const order = [], todo = linkage.length ? [n + linkage.length - 1] : [];
  while (todo.length) {
    const node = todo.pop();
    if (node < n) order.push(node);
    else todo.push(linkage[node - n][1], linkage[node - n][0]);
  }
  const seen = new Set(order);
  return [...order, ...Array.from({ length: n }, (_, i) => i).filter((i) => !seen.has(i))];
}

export const clusterIndex = (name) => Number(name) || 0;

function roundsOf(state) {
  return Object.values(state.clusters?.rounds ?? {}).sort((a, b) => a.round - b.round);
}

function swatches(box, names) {
  box.replaceChildren(...names.map((name) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({ width: 14, height: 14, rx: 2, fill: category(name.index) })) rect.setAttribute(key, value);
    for (const [key, value] of Object.entries({ width: 14, height: 14, "aria-hidden": "true" })) svg.setAttribute(key, value);
    svg.append(rect);
    return el("span", { class: "swatch" }, svg, name.label);
  }));
}

function heat() {
  const image = picture($("box-heat"), "Similarity of clients");
  let similarity = null, assignment = {};

  function draw() {
    const width = image.box.clientWidth;
    if (!similarity || !width) return;
    const { clients, matrix, linkage = [], cut } = similarity;
    const n = clients.length, order = leaves(linkage, n);
    const left = Math.min(width - LABELS, SIDE) / n >= 9 ? LABELS : 0;
    const cell = Math.min(36, SIDE / n, Math.max(2, (width - left - 4) / n)), top = TREE + STRIP + 6, side = cell * n;
    const values = matrix.flatMap((row, i) => row.filter((_, j) => i !== j));
    const low = Math.min(1, ...values), high = Math.max(low + 1e-9, ...values);
    const name = (i) => clients[order[i]];
    const cells = {
      x: left, y: top, width: cell, height: cell, columns: n, rows: n,
      describe: (c, r) => `${name(r)} and ${name(c)}: ${fixed(matrix[order[r]][order[c]])}`,
    };
    image.draw(Math.max(left + side + 2, Math.min(width, 200)), top + side + 2, cells, (context) => {
      tree(context, linkage, order, n, left, cell, cut);
      for (let r = 0; r < n; r++) {
        for (let c = 0; c < n; c++) {
          context.fillStyle = cividis((matrix[order[r]][order[c]] - low) / (high - low));
          context.fillRect(left + c * cell, top + r * cell, Math.ceil(cell), Math.ceil(cell));
        }
      }
      strip(context, order.map((i) => assignment[clients[i]]), left, top, cell);
      context.fillStyle = css("--text");
      context.textAlign = "right";
      if (left) order.forEach((i, r) => context.fillText(clipped(context, clients[i], left - 8), left - 6, top + (r + 0.5) * cell));
    });
    scale(low, high);
    const groups = new Set(clients.map((client) => assignment[client]).filter((cluster) => cluster !== undefined)).size;
    $("note-heat").textContent = `Round ${similarity.round}: cosine similarity of ${similarity.layer || "the dense layers"}, ${n} clients in the order of the dendrogram` +
      `${cut === undefined ? "" : `. Dashed line: the cut at a distance of ${fixed(cut)}`}.`;
    image.label(`Heat map of the similarity of ${n} clients in ${groups} clusters. Read its cells with the arrow keys, or the table below.`);
  }

  function tree(context, linkage, order, n, left, cell, cut) {
    if (!linkage.length) return;
    const most = Math.max(linkage.at(-1)[2], cut ?? 0, 1e-9) * 1.08;
    const y = (height) => TREE - (height / most) * (TREE - 14);
    const places = new Map(order.map((leaf, i) => [leaf, [left + (i + 0.5) * cell, TREE]]));
    context.strokeStyle = css("--text");
    linkage.forEach(([a, b, height], i) => {
      const [one, two, up] = [places.get(a), places.get(b), y(height)];
      if (!one || !two) return;
      context.lineWidth = cut === undefined || height <= cut ? 1.75 : 0.75;
      context.beginPath();
      context.moveTo(...one);
      context.lineTo(one[0], up);
      context.lineTo(two[0], up);
      context.lineTo(...two);
      context.stroke();
      places.set(n + i, [(one[0] + two[0]) / 2, up]);
    });
    if (cut === undefined) return;
    context.lineWidth = 1.5;
    context.setLineDash([6, 4]);
    context.strokeStyle = css("--alert");
    context.beginPath();
    context.moveTo(left, y(cut));
    context.lineTo(left + n * cell, y(cut));
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = css("--alert");
    context.textAlign = left ? "right" : "left";
    context.fillText(`cut ${fixed(cut)}`, left ? left - 6 : 2, left ? y(cut) : y(cut) - 8);
  }

  function strip(context, assigned, left, top, cell) {
    context.textAlign = "center";
    for (let i = 0; i < assigned.length;) {
      let end = i;
      while (end < assigned.length && assigned[end] === assigned[i]) end++;
      if (assigned[i] !== undefined) {
        const colour = category(clusterIndex(assigned[i]));
        context.fillStyle = colour;
        context.fillRect(left + i * cell, TREE + 2, (end - i) * cell - 1, STRIP);
        context.fillStyle = ink(colour);
        if ((end - i) * cell > 9) context.fillText(String(assigned[i]), left + ((i + end) / 2) * cell, TREE + 2 + STRIP / 2 + 1);
        context.strokeStyle = css("--panel");
        context.lineWidth = 1;
        context.strokeRect(left + i * cell, top + i * cell, (end - i) * cell, (end - i) * cell);
      }
      i = end;
    }
  }

  function scale(low, high) {
    const canvas = el("canvas", { "aria-hidden": "true" });
    [canvas.width, canvas.height] = [160, 12];
    const context = canvas.getContext("2d");
    for (let x = 0; x < 160; x++) {
      context.fillStyle = cividis(x / 159);
      context.fillRect(x, 0, 1, 12);
    }
    $("legend-heat").replaceChildren(`similarity ${fixed(low)} `, canvas, ` ${fixed(high)}`);
  }

  onWidth(image.box, draw);
  onTheme(draw);
  const again = dataTable($("table-heat"), () => "Cosine similarity of each pair of clients", () => ["Client", ...order().map((i) => similarity.clients[i])],
    () => order().map((i) => [similarity.clients[i], ...order().map((j) => fixed(similarity.matrix[i][j]))]));
  const order = () => (similarity ? leaves(similarity.linkage ?? [], similarity.clients.length) : []);
  return (state) => {
    similarity = state.clusters?.similarity ?? null;
    const rounds = roundsOf(state);
    assignment = (rounds.find((each) => each.round === similarity?.round) ?? rounds.at(-1))?.assignment ?? {};
    $("box-heat").closest("figure").hidden = !similarity;
    draw();
    again();
  };
}

function members() {
  const image = picture($("box-members"), "Membership of clusters over time");
  let rounds = [], clients = [];

  function draw() {
    const width = image.box.clientWidth;
    if (!rounds.length || !width) return;
    const shown = rounds.slice(-Math.max(4, Math.floor((width - LABELS) / 6)));
    const cell = Math.min(28, (width - LABELS - 4) / shown.length);
    const cells = {
      x: LABELS, y: ROW, width: cell, height: ROW, columns: shown.length, rows: clients.length,
      describe: (c, r) => `${clients[r]}, round ${shown[c].round}: ${shown[c].assignment[clients[r]] === undefined ? "in no cluster" : `cluster ${shown[c].assignment[clients[r]]}`}`,
    };
    image.draw(Math.max(LABELS + cell * shown.length + 2, 200), ROW * (clients.length + 1) + 2, cells, (context) => {
      context.textAlign = "center";
      const every = Math.ceil(26 / cell);
      shown.forEach((each, c) => c % every === 0 && context.fillText(String(each.round), LABELS + (c + 0.5) * cell, ROW / 2));
      clients.forEach((client, r) => {
        const y = ROW * (r + 1);
        context.fillStyle = css("--text");
        context.textAlign = "right";
        context.fillText(clipped(context, client, LABELS - 8), LABELS - 6, y + ROW / 2);
        context.textAlign = "center";
        shown.forEach((each, c) => {
          const cluster = each.assignment[client], before = shown[c - 1]?.assignment[client];
          if (cluster === undefined) return;
          const colour = category(clusterIndex(cluster));
          context.fillStyle = colour;
          context.fillRect(LABELS + c * cell, y, Math.max(cell - 1, cell * 0.8), ROW - 1);
          context.fillStyle = ink(colour);
          if (cell > 9 || cluster !== before) context.fillText(String(cluster), LABELS + (c + 0.5) * cell, y + ROW / 2 + 0.5);
        });
      });
    });
  }

  onWidth(image.box, draw);
  onTheme(draw);
  const again = dataTable($("table-members"), () => "Cluster of each client by round", () => ["Client", ...rounds.map((each) => `Round ${each.round}`)],
    () => clients.map((client) => [client, ...rounds.map((each) => each.assignment[client] ?? "–")]));
  return (state) => {
    rounds = roundsOf(state);
    const last = rounds.at(-1)?.assignment ?? {};
    const ids = new Set(rounds.flatMap((each) => Object.keys(each.assignment)));
    clients = [...ids].sort((a, b) => (last[a] ?? 1e9) - (last[b] ?? 1e9) || collator(a, b));
    const names = [...new Set(rounds.flatMap((each) => Object.values(each.assignment)))].sort((a, b) => a - b);
    const now = names.filter((name) => Object.values(last).includes(name));
    swatches($("legend-members"), names.slice(0, 24).map((name) => ({
      index: clusterIndex(name), label: `cluster ${name} (${Object.values(last).filter((cluster) => cluster === name).length})`,
    })));
    $("note-members").textContent = rounds.length ? `Round ${rounds.at(-1).round}: ${Object.keys(last).length} clients in ${now.length} ${now.length === 1 ? "cluster" : "clusters"}. Rows are clients, ordered by cluster. Columns are rounds.` : "";
    image.label(`Clusters of ${clients.length} clients over ${rounds.length} rounds. Read the cells with the arrow keys, or the table below.`);
    draw();
    again();
  };
}

export function clusters() {
  const [showHeat, showMembers] = [heat(), members()];
  return (state) => {
    const any = Boolean(state.clusters?.similarity) || roundsOf(state).length > 0;
    $("clusters").hidden = !any;
    if (any) {
      showHeat(state);
      showMembers(state);
    }
  };
}

export { swatches };
