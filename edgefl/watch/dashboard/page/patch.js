// Applies a merge patch (RFC 7396). Keys come from the network, so objects have no prototype: a device may have the id `constructor`.

export function applyPatch(target, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const base = target !== null && typeof target === "object" && !Array.isArray(target) ? target : {};
  const made = Object.assign(Object.create(null), base);
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete made[key];
    else made[key] = applyPatch(made[key], value);
  }
  return made;
}
