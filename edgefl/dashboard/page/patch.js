// RFC 7396. Keys come from the network: only own properties count, so that a device may be called `constructor`.

export function applyPatch(target, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const known = target !== null && typeof target === "object" && !Array.isArray(target) ? target : {};
  const made = Object.assign(Object.create(null), known);
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete made[key];
    else made[key] = applyPatch(made[key], value);
  }
  return made;
}
