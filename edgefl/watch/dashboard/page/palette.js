// Colours that colour-blind readers can distinguish (Okabe and Ito 2008), and cividis for values (Nunez, Anderton, Renslow 2018).
// Colour is never the only difference: lines have dashes, cells have labels, states have signs and names.

const CATEGORIES = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999"];
const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const dark = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => dark.matches;
export const onTheme = (call) => dark.addEventListener("change", call);
export const category = (index) => CATEGORIES[((index % CATEGORIES.length) + CATEGORIES.length) % CATEGORIES.length];

// Returns three line styles that differ in colour, brightness and dash.
export const lines = () =>
  isDark()
    ? [{ stroke: "#56b4e9" }, { stroke: "#e69f00", dash: [8, 4] }, { stroke: "#e6a8cc", dash: [2, 3] }]
    : [{ stroke: "#0072b2" }, { stroke: "#b34700", dash: [8, 4] }, { stroke: "#9c3f74", dash: [2, 3] }];

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

export function cividis(share) {
  const at = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.min(Math.floor(at), CIVIDIS.length - 2);
  const [one, two] = [channels(CIVIDIS[low]), channels(CIVIDIS[low + 1])];
  return `rgb(${one.map((c, i) => Math.round(c + (two[i] - c) * (at - low))).join(" ")})`;
}

// Returns black or white, whichever is easier to read on the colour.
export function ink(hex) {
  const [r, g, b] = channels(hex).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}
