"""The telemetry of a device: few numbers, which have no effect on a result."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from devices.telemetry import MAX_METRICS, make_telemetry, read_field_figures
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.protocol.wire.messages import Metrics
from edgefl.protocol.wire.strict_json import decode_json, encode_json

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)


def test_telemetry_of_a_round_has_metrics_and_sensor_values():
    telemetry = make_telemetry("pi-1", 3, {"loss": 0.5, "seconds": 1.25, "peak_rss_mb": 70.0})
    assert (telemetry.client_id, telemetry.round, telemetry.seconds) == ("pi-1", 3, 1.25)
    assert telemetry.values == {"loss": 0.5, "seconds": 1.25, "peak_rss_mb": 70.0}
    assert 1 < telemetry.rss_mb <= telemetry.peak_rss_mb + 1
    assert math.isnan(telemetry.temperature_c) or -60 < telemetry.temperature_c < 160
    assert math.isnan(make_telemetry("pi-1", 3, {}).seconds)


@given(st.dictionaries(st.text(max_size=80), ANY_FLOAT, max_size=100))
def test_any_metrics_fit_the_message_size_and_are_numbers(metrics):
    telemetry = make_telemetry("a" * 64, 2**62, metrics)
    payload = encode_json(telemetry)
    assert len(payload) <= Metrics.MAX_BYTES
    raw = json.loads(payload)
    assert len(raw["values"]) <= MAX_METRICS
    numbers = [*raw["values"].values(), *(raw[key] for key in raw.keys() - {"values", "client_id"})]
    assert all(number is None or isinstance(number, int | float) for number in numbers)
    assert decode_json(Metrics, payload).round == 2**62


def test_longest_names_and_numbers_fit_the_message_size():
    metrics = {f"{i:064d}": -1.2345678901234567e-300 for i in range(100)}
    assert len(encode_json(make_telemetry("a" * 64, 2**62, metrics))) <= Metrics.MAX_BYTES


def test_numpy_numbers_are_converted_without_changing_update_metrics():
    metrics = {"loss": np.float32(0.5)}
    assert type(make_telemetry("pi-1", 1, metrics).values["loss"]) is float
    assert metrics == {"loss": np.float32(0.5)}


def test_firmware_figures_are_added_where_present(tmp_path):
    assert read_field_figures(tmp_path) == {}
    for content in (b"", b"[1]", b'{"drift_psi": "high"}', b'{"drift_psi": [1]}'):
        DeviceFiles(tmp_path).field_figures.write_bytes(content)
        assert read_field_figures(tmp_path) == {}
    DeviceFiles(tmp_path).field_figures.write_bytes(b'{"drift_psi": 0.5, "drifted": 1}')
    assert make_telemetry("pi-1", 1, {"loss": 1.0} | read_field_figures(tmp_path)).values == {
        "loss": 1.0,
        "drift_psi": 0.5,
        "drifted": 1.0,
    }
