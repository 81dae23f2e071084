"""A firmware project around the C: targets, toolchains, QEMU."""
