"""The C of real mixtures gives the bytes of tflite-micro; it is strict C99, the same each time, and free of undefined behaviour."""

import subprocess
from pathlib import Path

import compiled
import numpy as np
import pytest

from edgefl.errors import ExportError
from edgefl.mixture import fill_template
from firmware_export.c_source import CSource, generate
from firmware_export.quantize import RECIPES, quantize
from firmware_export.ranges import observe
from firmware_export.run import load, quantize_input
