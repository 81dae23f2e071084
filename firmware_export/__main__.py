"""`python -m firmware_export export|infer|bench-int8`: the package's commands without the others."""

import sys

import click

from edgefl.errors import EdgeflError
from firmware_export.bench_commands import bench_int8
from firmware_export.commands import export, infer

group = click.Group("firmware_export", commands={"export": export, "infer": infer, "bench-int8": bench_int8})

if __name__ == "__main__":
    try:
        group()
    except EdgeflError as error:
        sys.exit(f"firmware_export: {error}")
