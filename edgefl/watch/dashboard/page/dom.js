// Creates elements and formats numbers. Data from the network only becomes text nodes.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const percent = (value) => (isNumber(value) ? `${(100 * value).toFixed(1)}%` : "–");
export const fixed = (value, digits = 3) => (isNumber(value) ? value.toFixed(digits) : "–");
export const count = (value) => (isNumber(value) ? value.toLocaleString("en") : "–");

export function bytes(value) {
  if (!isNumber(value)) return "–";
  if (value < 1e3) return `${value}\u00a0B`;
  const [unit, name] = value < 1e6 ? [1e3, "kB"] : value < 1e9 ? [1e6, "MB"] : [1e9, "GB"];
  return `${(value / unit).toFixed(value / unit < 10 ? 2 : value / unit < 100 ? 1 : 0)}\u00a0${name}`;
}

export function span(seconds) {
  if (!isNumber(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")} min`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} days`;
}

// Adds the data of a picture as a table, for screen readers, keyboards and copying. The table is built when it is opened.
export function dataTable(details, caption, head, rows) {
  details.make = () => {
    const body = rows().map((row) => el("tr", {}, ...row.map((cell, i) => (i ? el("td", {}, cell) : el("th", { scope: "row" }, cell)))));
    const titles = head().map((title) => el("th", { scope: "col" }, title));
    const table = el("table", {}, el("caption", {}, caption()), el("thead", {}, el("tr", {}, ...titles)), el("tbody", {}, ...body));
    let box = details.querySelector(".scroll");
    if (!box) {
      box = el("div", { class: "scroll", tabindex: "0", role: "region" });
      details.append(box);
    }
    box.setAttribute("aria-label", caption());
    box.replaceChildren(table);
  };
  details.addEventListener("toggle", () => details.open && details.make());
  return () => details.open && details.make();
}

export function collator(a, b) {
  return a.localeCompare(b, "en", { numeric: true });
}
