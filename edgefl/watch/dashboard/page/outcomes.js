// The results of the devices: from the verdict if the aggregator has published it, otherwise as the devices reported them.

import { collator, isNumber } from "./dom.js";

export const FIGURES = ["local", "federated", "shipped", "int8"];
const KINDS = ["local", "federated", "fine-tuned", "mixture", "blend"];

const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : undefined);

const gainPoints = ({ local, shipped }) => (isNumber(local) && isNumber(shipped) ? 100 * (shipped - local) : undefined);

// Returns "up" or "down" if a test finds a difference from training alone, "same" if it is within chance, "" without a test.
export function wayOf(comparison, points) {
  if (comparison === "as good") return "same";
  // The test over all devices counts samples, the mean counts devices: they may point in opposite directions.
  if (comparison === "better" && points >= 0) return "up";
  return comparison === "worse" && points <= 0 ? "down" : "";
}

// Returns the name of the measure of the accuracies: accuracy, R2 or AUC. Anything else counts as accuracy.
export const measureOf = (one) => (["R2", "AUC"].includes(one?.measure) ? one.measure : "accuracy");
export const titled = (measure) => measure[0].toUpperCase() + measure.slice(1);

export function outcomes(state) {
  const judged = new Map((state.verdict?.rows ?? []).map((row) => [row.id, row]));
  const devices = Object.values(state.devices ?? {}), ids = new Set([...judged.keys(), ...devices.map(({ id }) => id)]);
  const reported = new Map(devices.map((device) => [device.id, {
    id: device.id, local: device.accuracy_local, federated: device.accuracy_federated,
    shipped: device.accuracy_shipped ?? device.accuracy_mixture, int8: device.accuracy_int8, kind: KINDS[device.shipped] ?? "",
  }]));
  const rows = [...ids].map((id) => judged.get(id) ?? reported.get(id)).filter((row) => FIGURES.some((key) => isNumber(row[key])));
  rows.sort((a, b) => collator(a.id, b.id));
  const means = state.verdict?.means ?? Object.fromEntries(FIGURES.map((key) => [key, mean(rows.map((row) => row[key]).filter(isNumber))]));
  const counts = KINDS.map((kind) => [kind, state.verdict?.kinds?.[kind] ?? rows.filter((row) => row.kind === kind).length]).filter(([, n]) => n);
  const measured = state.verdict?.devices ?? rows.filter((row) => isNumber(row.shipped)).length;
  const gain = state.verdict ? state.verdict.gain_points : gainPoints(means);
  return { rows, means, measured, gain, overall: state.verdict?.overall ?? "", kinds: counts, sentence: state.verdict?.sentence ?? "" };
}
