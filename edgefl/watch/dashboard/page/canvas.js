// A picture made of cells. A text below describes the cell under the mouse, or the cell chosen with the arrow keys.

import { el } from "./dom.js";
import { css } from "./palette.js";

export function picture(box, label) {
  const canvas = el("canvas", { role: "img", tabindex: "0", "aria-label": label });
  const mark = el("div", { class: "mark", hidden: true });
  const description = el("p", { class: "description", role: "status" });
  const scroller = el("div", { class: "canvas-scroll" }, canvas, mark);
  box.replaceChildren(scroller, description);
  let grid = null, at = null;

  function point(column, row) {
    at = [Math.min(Math.max(column, 0), grid.columns - 1), Math.min(Math.max(row, 0), grid.rows - 1)];
    mark.hidden = false;
    mark.style.left = `${grid.x + at[0] * grid.width}px`;
    mark.style.top = `${grid.y + at[1] * grid.height}px`;
    mark.style.width = `${grid.width}px`;
    mark.style.height = `${grid.height}px`;
    description.textContent = grid.describe(...at);
  }

  canvas.addEventListener("mousemove", (event) => {
    if (!grid) return;
    const column = Math.floor((event.offsetX - grid.x) / grid.width), row = Math.floor((event.offsetY - grid.y) / grid.height);
    if (column >= 0 && row >= 0 && column < grid.columns && row < grid.rows) point(column, row);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step || !grid || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    if (at) point(at[0] + step[0], at[1] + step[1]);
    else point(0, 0);
    mark.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  canvas.addEventListener("blur", () => (mark.hidden = true));

  return {
    box: scroller,
    // Sets the size in CSS pixels, draws with `paint(context)`, and stores where the cells are and how to describe them.
    draw(width, height, cells, paint) {
      const ratio = Math.min(window.devicePixelRatio || 1, 2, 16000 / Math.max(width, height, 1));
      [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
      [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.fillStyle = context.strokeStyle = css("--text");
      paint(context);
      grid = cells.columns && cells.rows ? cells : null;
      if (!grid) mark.hidden = true;
      else if (at && !mark.hidden) point(...at);
    },
    label: (text) => canvas.setAttribute("aria-label", text),
  };
}

export function clipped(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let short = text;
  while (short.length > 1 && context.measureText(`${short}…`).width > width) short = short.slice(0, -1);
  return `${short}…`;
}

// Calls `draw` when the width of a box changes.
export function onWidth(box, draw) {
  let last = 0;
  new ResizeObserver(() => {
    if (box.clientWidth !== last) {
      last = box.clientWidth;
      draw();
    }
  }).observe(box);
}
