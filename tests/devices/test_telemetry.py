"""What a device tells of its board: numbers, few, and nothing that a result is made of."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from devices.telemetry import MAX_METRICS, make_telemetry, read_field_figures
from edgefl.storage.device_directory import DeviceFiles
from edgefl.wire.messages import Metrics
from edgefl.wire.strict_json import decode_json, encode_json

ANY = st.floats(allow_nan=True, allow_infinity=True)


def test_a_round_by_hand():
    told = make_telemetry("pi-1", 3, {"loss": 0.5, "seconds": 1.25, "peak_rss_mb": 70.0})
    assert (told.client_id, told.round, told.seconds) == ("pi-1", 3, 1.25)
    assert told.values == {"loss": 0.5, "seconds": 1.25, "peak_rss_mb": 70.0}
    assert 1 < told.rss_mb <= told.peak_rss_mb + 1
    assert math.isnan(told.temperature_c) or -60 < told.temperature_c < 160
    assert math.isnan(make_telemetry("pi-1", 3, {}).seconds)


@given(st.dictionaries(st.text(max_size=80), ANY, max_size=100))
def test_any_metrics_fit_and_are_numbers(metrics):
    told = make_telemetry("a" * 64, 2**62, metrics)
    payload = encode_json(told)
    assert len(payload) <= Metrics.MAX_BYTES
    raw = json.loads(payload)
    assert len(raw["values"]) <= MAX_METRICS
    numbers = [*raw["values"].values(), *(raw[key] for key in raw.keys() - {"values", "client_id"})]
    assert all(each is None or isinstance(each, int | float) for each in numbers)
    assert decode_json(Metrics, payload).round == 2**62


def test_names_and_numbers_of_full_length_fit():
    metrics = {f"{i:064d}": -1.2345678901234567e-300 for i in range(100)}
    assert len(encode_json(make_telemetry("a" * 64, 2**62, metrics))) <= Metrics.MAX_BYTES


def test_numbers_of_numpy_become_plain_and_the_update_metrics_stay_as_they_are():
    metrics = {"loss": np.float32(0.5)}
    assert type(make_telemetry("pi-1", 1, metrics).values["loss"]) is float
    assert metrics == {"loss": np.float32(0.5)}


def test_figures_of_the_firmware_are_told_where_there_are_any(tmp_path):
    assert read_field_figures(tmp_path) == {}
    for bad in (b"", b"[1]", b'{"drift_psi": "high"}', b'{"drift_psi": [1]}'):
        DeviceFiles(tmp_path).field_figures.write_bytes(bad)
        assert read_field_figures(tmp_path) == {}
    DeviceFiles(tmp_path).field_figures.write_bytes(b'{"drift_psi": 0.5, "drifted": 1}')
    assert make_telemetry("pi-1", 1, {"loss": 1.0} | read_field_figures(tmp_path)).values == {
        "loss": 1.0,
        "drift_psi": 0.5,
        "drifted": 1.0,
    }
