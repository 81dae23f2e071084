// One row per device and one mark per model: the accuracy of each model on the samples of the device.

import { el, percent, isNumber } from "./dom.js";
import { onWidth } from "./canvas.js";
import { titled, wayOf } from "./outcomes.js";

const ROW = 36, AXIS = 30, EDGE = 14, LANE = 9;
export const MARKS = { local: ["square", "alone"], federated: ["triangle", "together"], shipped: ["disc", "yours"], int8: ["", "yours as int8"], accuracy: ["disc", "last reported"] };

function shape(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function mark(key, x, y) {
  const style = `mark-${key}`;
  if (MARKS[key][0] === "square") return shape("rect", { x: x - 3.5, y: y - 3.5, width: 7, height: 7, class: style });
  if (MARKS[key][0] === "triangle") return shape("path", { d: `M${x - 5} ${y + 4}L${x + 5} ${y + 4}L${x} ${y - 4.5}Z`, class: style });
  return shape("circle", { cx: x, cy: y, r: 4.5, class: style });
}

// Returns the range that contains all values: between multiples of 10%, at least 20% wide.
export function range(values) {
  let low = Math.max(0, Math.floor(10 * Math.min(...values) - 0.05) / 10), high = Math.min(1, Math.ceil(10 * Math.max(...values) + 0.05) / 10);
  if (high - low < 0.15) [low, high] = high >= 0.2 ? [high - 0.2, high] : [0, 0.2];
  return [low, high];
}

// Puts marks that would hide each other into separate lanes above and below the middle of the row. Returns a [key, x, lane] for each mark.
export function lanes(marks) {
  const crowds = [];
  for (const one of [...marks].sort((a, b) => a[1] - b[1])) {
    const crowd = crowds.at(-1);
    if (crowd && one[1] - crowd.at(-1)[1] < 11) crowd.push(one);
    else crowds.push([one]);
  }
  const laned = crowds.flatMap((crowd) => marks.filter((one) => crowd.includes(one)).map(([key, x], i) => [key, x, i - (crowd.length - 1) / 2]));
  return marks.map(([key]) => laned.find(([other]) => other === key));
}

function ticks(low, high, room) {
  const step = [0.05, 0.1, 0.2, 0.5].find((each) => ((high - low) / each) * 52 <= room) ?? 1;
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

export function dots(box, legend) {
  let rows = [], keys = [], measure = "accuracy";

  function draw() {
    const width = Math.min(box.clientWidth, 900);
    if (!rows.length || !width) return;
    const label = Math.min(0.3 * width, 8 + 8 * Math.max(...rows.map(({ id }) => id.length))), value = 56;
    const left = label + EDGE, right = width - value - EDGE, height = ROW * rows.length + AXIS;
    const all = rows.flatMap((row) => keys.map((key) => row[key]).filter(isNumber)), [low, high] = range(all);
    const at = (share) => left + ((share - low) / (high - low)) * (right - left);
    const last = keys.includes("shipped") ? "shipped" : keys[0];
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "dots", role: "img" });
    svg.setAttribute("aria-label", `${titled(measure)} of ${rows.length} clients: ${keys.map((key) => MARKS[key][1]).join(", ")}. A table follows.`);
    for (const share of ticks(low, high, right - left)) {
      svg.append(shape("line", { x1: at(share), x2: at(share), y1: 0, y2: height - AXIS + 4, class: "grid" }));
      svg.append(shape("text", { x: at(share), y: height - 8, "text-anchor": "middle" }, `${Math.round(100 * share)}%`));
    }
    rows.forEach((row, i) => {
      const y = (i + 0.5) * ROW, group = shape("g", {});
      group.append(shape("title", {}, `${row.id}: ${keys.filter((key) => isNumber(row[key])).map((key) => `${MARKS[key][1]} ${percent(row[key])}`).join(", ")}`));
      group.append(shape("rect", { x: 0, y: y - ROW / 2, width, height: ROW, class: i % 2 ? "row" : "row odd" }));
      const letters = Math.floor(label / 7.5);
      group.append(shape("text", { x: label, y: y + 4, "text-anchor": "end" }, row.id.length > letters ? `${row.id.slice(0, Math.max(1, letters - 1))}…` : row.id));
      if (isNumber(row.local) && isNumber(row.shipped)) {
        group.append(shape("line", { x1: at(row.local), x2: at(row.shipped), y1: y, y2: y, class: `way ${wayOf(row.comparison, row.shipped - row.local)}` }));
      }
      for (const [key, x, lane] of lanes(keys.filter((key) => isNumber(row[key])).map((key) => [key, at(row[key])]))) group.append(mark(key, x, y + LANE * lane));
      group.append(shape("text", { x: width - 4, y: y + 4, "text-anchor": "end", class: "value" }, percent(row[last])));
      svg.append(group);
    });
    box.replaceChildren(svg);
  }

  onWidth(box, draw);
  return (newRows, newKeys, newMeasure) => {
    [rows, keys, measure] = [newRows, newKeys, newMeasure];
    legend.replaceChildren(...keys.map((key) => {
      const svg = shape("svg", { width: 16, height: 18, "aria-hidden": "true", class: "dots" });
      svg.append(mark(key, 8, 9));
      return el("span", { class: "swatch" }, svg, MARKS[key][1]);
    }));
    if (!rows.length) box.replaceChildren();
    draw();
  };
}
