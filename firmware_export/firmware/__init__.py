"""A firmware project around the generated C: targets, toolchains, QEMU."""
