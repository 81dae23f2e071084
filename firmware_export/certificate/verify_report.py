"""Check a folder that a device left, without a certificate: model.tflite, report.json, the accuracy where its
samples are at hand.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.sources import DataSource, load_source
from edgefl.errors import ExportError, StateError
from edgefl.storage.demo_directory import DemoFiles
from edgefl.types import Shard
from firmware_export.certificate.bundle import MODEL, MODEL_FLOAT, NOTE
from firmware_export.certificate.certificate import NAME
from firmware_export.certificate.golden import choose, make_golden
from firmware_export.certificate.parity import EQUAL, run_everywhere
from firmware_export.certificate.verify import Verified
from firmware_export.codegen.c_source import generate
from firmware_export.firmware.targets import HOST, TARGETS
from firmware_export.quantize.device_state import read_state
from firmware_export.tflite.graph import check_integer, read_graph
from firmware_export.tflite.interpreter import accuracy, load, outputs

SAMPLES = 200
WITHOUT = f"sizes and instructions: there is no {NAME}; make one with `edgefl export --target`"


def verify_report(folder: Path, source: DataSource | None = None) -> Verified:
    """Check model.tflite and report.json.

    `source`: samples, else those of DIR/devices/ID beside DIR/clients/ID.

    ExportError names the file or figure that does not hold.
    """
    model = _read(folder, MODEL)
    note = _note(_read(folder, NOTE))
    if sha256(model).hexdigest() != note["sha256"]:
        raise ExportError(
            f"{MODEL} is not the file of {NOTE}: sha256 {sha256(model).hexdigest()}, expected "
            f"{note['sha256']}; export again"
        )
    check_integer(read_graph(model))
    checked = [f"{MODEL} is the file that {NOTE} speaks of, {len(model):,} bytes, integers all through"]
    shard, why = _shard(folder, note, source, load(model).shape[1:])
    if shard is None:
        return Verified(tuple(checked), (f"accuracy and parity: {why}", WITHOUT))
    checked += _accuracies(model, _read(folder, MODEL_FLOAT), shard, note)
    golden = make_golden(model, *choose(shard, SAMPLES, int(note["seed"])))
    ran = run_everywhere(generate(model).files, golden, list(TARGETS.values()), HOST)
    equal = ["tflite-micro", *(place.name for place in ran if place.status == EQUAL)]
    checked.append(f"{len(golden.y)} samples, every output byte the same: {', '.join(equal)}")
    unchecked = [f"{place.name}: {place.reason}" for place in ran if place.status != EQUAL]
    return Verified(tuple(checked), (*unchecked, WITHOUT))


def _accuracies(model: bytes, model_float: bytes, shard: Shard, note: dict[str, Any]) -> list[str]:
    x, y = (shard.x_test, shard.y_test) if len(shard.y_test) else (shard.x_train, shard.y_train)
    if len(y) != note["num_test"]:
        raise ExportError(
            f"{NOTE} speaks of {note['num_test']} samples, the shard holds out {len(y)}; give the device's "
            "own --data"
        )
    found = {"float": outputs(load(model_float), x)[0], "int8": outputs(load(model, reference=True), x)[0]}
    for kind, answers in found.items():
        told = note[f"accuracy_{kind}"]
        # Another version of the kernels may round a logit the other way: one sample of a hundred.
        if abs(accuracy(answers, y) - told) > max(0.01, 1.5 / len(y)) or not np.isfinite(answers).all():
            raise ExportError(
                f"{NOTE} says accuracy_{kind} {told}, found {accuracy(answers, y)}; export again"
            )
    return [
        f"accuracy on {len(y)} samples: float {accuracy(found['float'], y):.4f}, int8 "
        f"{accuracy(found['int8'], y):.4f}"
    ]


def _shard(
    folder: Path, note: dict[str, Any], source: DataSource | None, input_shape: tuple[int, ...]
) -> tuple[Shard | None, str]:
    if source is not None:
        return load_source(source, seed=int(note["seed"]), input_shape=input_shape), ""
    state = DemoFiles(folder.resolve().parent.parent).device(client=folder.resolve().name)
    try:
        return read_state(state).shard(), ""
    except StateError:
        return None, f"no samples; {state} is no device's state: give --data"


def _note(blob: bytes) -> dict[str, Any]:
    try:
        note = json.loads(blob)
        missing = {"sha256", "num_test", "seed", "client_id", "accuracy_float", "accuracy_int8"} - note.keys()
    except (ValueError, AttributeError) as error:
        raise ExportError(f"{NOTE} is damaged: {error!r}; export again") from error
    if missing:
        raise ExportError(f"{NOTE} lacks {', '.join(sorted(missing))}; export again")
    return dict(note)


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise ExportError(f"{name} cannot be read: {error}; give what `edgefl export -o` wrote") from error
