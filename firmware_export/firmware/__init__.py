"""A firmware project around the generated C, with targets, toolchains and QEMU."""
