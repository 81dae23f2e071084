"""A tiny anomaly detector: the model returns positive readings unchanged, and 0 for negative ones."""

import json
from pathlib import Path

from edgefl.base.storage.device_directory import DeviceFiles, encode_note
from edgefl.base.tasks.detector import TASK_METADATA_NAME, ModelTask, encode_model_task
from edgefl.base.tasks.samples import SAMPLES_METADATA_NAME, SamplesConfig, encode_samples
from edgefl.data.sources import DataSource
from edgefl.program.plan.tflite import with_metadata
from tests.firmware_export.graphs import Op, T, make_tflite

SCALE = 0.5
THRESHOLD = 1.0
"""Threshold of the mean absolute error."""


def save_detector(
    state: Path,
    federation: str = "",
    client_id: str = "pi-1",
    kind: str = "anomaly",
    samples: SamplesConfig | None = None,
    source: DataSource | None = None,
) -> Path:
    """Write the state directory of a device with a detector for windows of two readings with two channels."""
    files = DeviceFiles(state)
    files.model.parent.mkdir(parents=True)
    window = (1, 2, 2)
    model = make_tflite(
        [T(shape=window, scales=SCALE, zero=0), T(shape=window, scales=SCALE, zero=0)],
        [Op(name="RELU", inputs=(0,), outputs=(1,))],
    )
    units = round(THRESHOLD / SCALE * (1 << 14))
    task = (
        ModelTask(kind=kind, loss="mae", anomalies=(), false_alarm_rate=0.01, threshold=units)
        if kind == "anomaly"
        else ModelTask(kind=kind, loss="mse")
    )
    content = with_metadata(model, {TASK_METADATA_NAME: encode_model_task(task)})
    if samples:
        content = with_metadata(content, {SAMPLES_METADATA_NAME: encode_samples(samples)})
    files.model.write_bytes(content)
    if federation:
        owner = {"id": client_id, "federation": federation}
        files.note.write_bytes(encode_note(owner | (source.to_json() if source else {})))
    return state


def encode_reading(x: float, y: float) -> bytes:
    """Return a reading of two channels."""
    return json.dumps({"x": x, "y": y}).encode()
