"""The peer of the firmware benchmark, and the rows of its table."""

import numpy as np
import pytest

from edgefl.base.errors import EdgeflError, ExportError
from firmware_export.firmware.targets import TARGETS
from firmware_export.tflite.quantized_model import read_quantized_model
from tests.benchmarks.firmware.cmsis_nn import _generate_calls, measure
from tests.benchmarks.firmware.comparison import CORES, _make_row, render
from tests.firmware_export.graphs import Op, T, make_tflite

CERTIFICATE = {
    "golden": {"samples": 7},
    "accuracy": {"accuracy_float": 0.9, "accuracy_int8": 0.8},
    "layers": [{"macs": 100}, {"macs": 23}],
    "arena": {"bytes": 240, "bound_bytes": 200},
    "tflm": {"arena_bytes": 1000, "model_bytes": 25_000},
    "parity": [{"place": name, "status": "equal", "reason": ""} for name in ("host", *CORES)],
    "cost": [
        {
            "target": core,
            "flash_bytes": 10_000,
            "ram_bytes": 250,
            "stack_bytes": 64,
            "instructions_mean": 3000,
            "instructions_worst": 3001,
        }
        for core in CORES
    ],
}


def test_ratios_compare_with_tflm_and_cmsis_nn() -> None:
    row = _make_row("a graph", CERTIFICATE, {core: {"instructions": 6000} for core in CORES})
    assert (row["ram_over_arena"], row["flash_over_image"], row["macs"]) == (0.25, 0.1, 123)
    assert row["cores"]["cortex-m4"]["instructions_over_cmsis_nn"] == 0.5
    text = render(
        {
            "command": "python -m tests.benchmarks firmware",
            "machine": "here",
            "versions": {"gcc": "1"},
            "rows": [row],
        }
    )
    without = {
        **CERTIFICATE,
        "cost": [cost for cost in CERTIFICATE["cost"] if cost["target"] != "cortex-m55"],
    }
    assert list(_make_row("a large graph", without, {})["cores"]) == ["cortex-m3", "cortex-m4", "cortex-m7"]
    assert "0.50" in text and "0.25 of it, and 1.200 of the most" in text and "here; gcc 1" in text


def test_missing_peer_is_shown_and_missing_core_is_an_error() -> None:
    text = render(
        {"command": "", "machine": "", "versions": {}, "rows": [_make_row("a graph", CERTIFICATE, {})]}
    )
    assert "not measured" in text and "--cmsis-nn PATH" in text
    absent = [
        {"place": core, "status": "not run", "reason": "qemu-system-arm is not installed"} for core in CORES
    ]
    with pytest.raises(EdgeflError, match="cortex-m3: qemu-system-arm is not installed"):
        _make_row("a graph", CERTIFICATE | {"cost": [], "parity": absent}, {})


def test_sums_of_two_activations_are_counted() -> None:
    shape = (1, 4, 4, 2)
    tensors = [T(shape=shape), T(shape=shape), T(shape=(2,), data=np.ones(2, np.int8)), T(shape=shape)]

    def list_calls(*inputs):
        operator = Op(name="ADD", inputs=inputs, outputs=(3,), options_class="Add")
        return list(_generate_calls(read_quantized_model(make_tflite(tensors, [operator], (0, 1)))))

    (call,) = list_calls(0, 1)
    assert call.startswith("arm_elementwise_add_s8(t0, t1, ") and call.endswith(", 32);")
    assert list_calls(0, 2) == []


@pytest.mark.slow
def test_kernels_are_called_in_graph_order(bundle) -> None:
    calls = list(_generate_calls(read_quantized_model((bundle / "model.tflite").read_bytes())))
    kinds = [
        next((kind for kind in ("convolve", "pool", "elementwise_add") if kind in call), "dense")
        for call in calls
    ]
    assert kinds == ["convolve", "pool", "convolve", "pool", *["dense"] * 7, "elementwise_add"]


@pytest.mark.slow
def test_a_folder_without_cmsis_nn_is_refused(bundle, tmp_path) -> None:
    with pytest.raises(ExportError, match=r"holds no arm_nnfunctions\.h"):
        measure((bundle / "model.tflite").read_bytes(), tmp_path, TARGETS["cortex-m4"])
