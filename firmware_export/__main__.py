"""`python -m firmware_export export|infer`: the package's commands without the others."""

import sys

import click

from edgefl.errors import EdgeflError
from firmware_export.commands import export, infer

group = click.Group("firmware_export", commands={"export": export, "infer": infer})

if __name__ == "__main__":
    try:
        group()
    except EdgeflError as error:
        sys.exit(f"firmware_export: {error}")
