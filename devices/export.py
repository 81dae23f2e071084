"""Runs the export in a child process. When it ends, the system can use the memory of the quantizer again."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgefl.base.errors import ExportError
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.data.sources import DataSource

EXPORT_TIMEOUT_S = 900.0
TASK_MEASURES = ("auc", "r2")
"""Measures of the tasks that are no classifications, see `edgefl.base.verdict.MEASURES`."""


def export_in_child(state: Path, source: DataSource) -> Mapping[str, Any]:
    """Run `edgefl export` for this device's state and return its report.

    The export writes its files to `state/model`.

    Args:
        source: where the samples are.

    Raises:
        ExportError: the export failed.
    """
    command = [
        sys.executable,
        "-m",
        "edgefl",
        "export",
        "--state",
        str(state),
        "-o",
        str(DeviceFiles(state).export),
        "--json",
    ]
    if source.is_function:
        # Only the command line of the device may name code to run. A file must not
        command += ["--data", source.data]
    remedy = f"run `edgefl export --state {state} -o model/` to see its whole output"
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=EXPORT_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise ExportError(f"the export did not end within {EXPORT_TIMEOUT_S:g} s; {remedy}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ExportError(
            f"the export failed: {lines[-1] if lines else f'exit code {done.returncode}'}; {remedy}"
        )
    try:
        report = json.loads(done.stdout)
    except ValueError as error:
        raise ExportError(f"the export's report is not JSON: {error}; {remedy}") from error
    return dict(report)


def extract_export_metrics(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a report that the device sends to the aggregator.

    Args:
        report: the report of `export_in_child`.

    Returns:
        The accuracy of the int8 model, its size in bytes, and the peak memory of the export in MB. Another
            task than classification has the AUC and R2 of the int8 model, from 0 to 1, instead of the
            accuracy. A figure without samples is left out.
    """
    task = report.get("task", {})
    figures = {
        f"{name}_shipped_int8": max(0.0, float(task[f"{name}_int8"]))
        for name in TASK_MEASURES
        if task.get(f"{name}_int8") is not None
    }
    if "accuracy_int8" in report:
        figures = {"accuracy_shipped_int8": float(report["accuracy_int8"])}
    return {
        **figures,
        "tflite_bytes": float(report["tflite_bytes"]),
        "export_rss_mb": float(report["peak_rss_mb"]),
    }
