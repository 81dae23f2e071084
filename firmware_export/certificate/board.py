"""Verifies an export on a board, over a serial port.

The board runs the exported self-test. The report has no sample and no output, only a digest of the outputs.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from edgefl import __version__
from edgefl.base.errors import ExportError
from edgefl.base.system.files import write_atomic
from firmware_export.certificate.bundle import GOLDEN_FILE
from firmware_export.certificate.certificate import CERTIFICATE_FILE, read_certificate, read_request
from firmware_export.certificate.golden import decode_golden
from firmware_export.certificate.parity import check_outputs, hash_outputs
from firmware_export.certificate.verify import check_files
from firmware_export.firmware.serial_link import (
    SELFTEST_REMEDY,
    BoardRun,
    SerialPort,
    connect_board,
    run_board,
)

BOARD_REPORT_FILE = "board.json"
DEFAULT_BOARD_SAMPLES = 20
CYCLES = "cycles"
"""The counter of a board whose ticks are cycles of its core."""


def verify_on_board(
    out: Path,
    port: SerialPort,
    samples: int,
    report_file: Path,
    board: str = "",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Any]:
    """Compare a board's outputs with the golden outputs of an export, and write a report.

    Args:
        port: serial port of a board that runs the export's self-test.
        samples: maximum number of golden inputs to send.
        report_file: file of the report. It is written also if outputs differ.
        board: name of the board for the report. Empty for the name that the board says.
        progress: called with the number of finished samples and of all samples.

    Returns:
        The report as values for JSON.

    Raises:
        ExportError: an output byte differs, the board runs another model or does not answer, a file of the
            export differs from its digest, the certificate is damaged, or the report cannot be written.
    """
    try:
        certificate = read_certificate((out / CERTIFICATE_FILE).read_bytes())
    except OSError as error:
        raise ExportError(
            f"{out / CERTIFICATE_FILE} cannot be read: {error.strerror}; pass the folder of `edgefl export "
            "--target`"
        ) from error
    contents = check_files(out, certificate["files"], imported=read_request(certificate).imported)
    golden = decode_golden(contents[GOLDEN_FILE])
    inputs, expected = golden.inputs[:samples], golden.outputs[:samples]
    try:
        model = str(certificate["model"]["sha256"])
        read_instructions(certificate)
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{CERTIFICATE_FILE} is damaged: {error!r}; export again") from error
    _check_report_file(report_file, out, certificate["files"])
    info = connect_board(port, inputs[0].size)
    if info.model_sha256 != model:
        raise ExportError(
            f"the board runs another model, sha256 {info.model_sha256}, expected {model}; {SELFTEST_REMEDY}"
        )
    sizes = inputs[0].nbytes, expected[0].nbytes
    if (info.input_bytes, info.output_bytes) != sizes:
        raise ExportError(
            f"the board's model takes {info.input_bytes} bytes and gives {info.output_bytes}, expected "
            f"{sizes[0]} and {sizes[1]}; {SELFTEST_REMEDY}"
        )
    run = run_board(port, info, inputs, lambda done: progress(done, len(inputs)))
    run = replace(run, outputs=run.outputs.view(expected.dtype))
    report = make_board_report(run, expected, certificate, board)
    try:
        write_atomic(report_file, json.dumps(report, indent=1).encode())
    except OSError as error:
        raise ExportError(
            f"cannot write the report {report_file}: {error}; choose another file with --report"
        ) from error
    check_outputs(report["board"], expected, run.outputs)
    return report


def read_instructions(certificate: Mapping[str, Any]) -> int:
    """Return the mean instructions of an inference on the target of a certificate. 0 if they are unknown.

    Raises:
        ValueError: the certificate is damaged. KeyError and TypeError mean the same.
    """
    counted = (
        row["instructions_mean"] for row in certificate["cost"] if row["target"] == certificate["target"]
    )
    return int(next(counted, 0))


def _check_report_file(file: Path, out: Path, exported: Iterable[str]) -> None:
    """Check before the measurement that a report has a file of its own."""
    if file.is_dir():
        raise ExportError(f"the report {file} is a directory, expected a file; pass another --report")
    if file.resolve() in {(out / name).resolve() for name in (CERTIFICATE_FILE, *exported)}:
        raise ExportError(
            f"the report would overwrite {file} of the export, expected another file; pass another --report"
        )


def make_board_report(
    run: BoardRun, expected: Any, certificate: Mapping[str, Any], board: str = ""
) -> dict[str, Any]:
    """Return the report of a board's run as values for JSON.

    Args:
        expected: golden outputs of its samples, shape (n, m), int8.
        certificate: the certificate of the export.
        board: name of the board. Empty for the name that the board says.
    """
    milliseconds = 1000 * run.ticks / max(run.info.ticks_per_second, 1)
    instructions = read_instructions(certificate)
    per_instruction = None
    if run.info.counter == CYCLES and instructions:
        per_instruction = round(float(run.ticks.mean()) / instructions, 3)
    return {
        "report": 1,
        "edgefl": __version__,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "board": board or run.info.board,
        "board_info": asdict(run.info),
        "model_sha256": certificate["model"]["sha256"],
        "target": certificate["target"],
        "samples": len(run.ticks),
        "different_samples": int((np.asarray(expected) != run.outputs).any(axis=1).sum()),
        "outputs_sha256": hash_outputs(run.outputs),
        "ticks": {
            "mean": round(float(run.ticks.mean()), 1),
            "min": int(run.ticks.min()),
            "max": int(run.ticks.max()),
        },
        "milliseconds": {
            "mean": round(float(milliseconds.mean()), 4),
            "min": round(float(milliseconds.min()), 4),
            "max": round(float(milliseconds.max()), 4),
        },
        "instructions_of_qemu": instructions or None,
        "cycles_per_instruction": per_instruction,
    }


def describe_board_report(report: Mapping[str, Any], report_file: Path) -> str:
    """Return a summary of a board's report.

    Args:
        report: the report, from `verify_on_board`.
    """
    info = report["board_info"]
    time = report["milliseconds"]
    ticks = f"{report['ticks']['mean']:,.0f} {info['counter']} at {info['ticks_per_second'] / 1e6:g} MHz"
    lines = [
        f"ok           {report['board']} runs model.tflite, sha256 {report['model_sha256'][:16]}, compiled "
        f"with {info['compiler']}",
        f"ok           {report['samples']} golden inputs, every output byte the same",
        f"measured     {time['mean']:.3f} ms per inference, from {time['min']:.3f} to {time['max']:.3f}: "
        f"{ticks}",
    ]
    if report["cycles_per_instruction"]:
        lines.append(
            f"measured     {report['cycles_per_instruction']:.2f} cycles per instruction of QEMU's "
            f"{report['instructions_of_qemu']:,} for {report['target']}"
        )
    if info["board"].startswith("QEMU"):
        lines.append("warning      QEMU counts instructions, so its time is not the time of a board")
    return "\n".join([*lines, f"{report_file}: the report, without samples and outputs"])
