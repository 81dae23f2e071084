"""For every mixture on every data set, tflite-micro, the host's C and the C in QEMU give the same bytes.

A normal run tests a few of them. `make test-parity` runs all, with 1,000 samples each.
"""

import os

import numpy as np
import pytest
from edgefl_export_tests_mixtures import DATA, KINDS  # conftest.py has loaded it

from firmware_export.certificate.golden import make_golden
from firmware_export.certificate.parity import EQUAL, run_everywhere
from firmware_export.codegen.c_source import generate_c
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.targets import TARGETS
from firmware_export.quantize.dense_weights import with_few_values

pytest.importorskip("tflite_micro")
SAMPLES = int(os.environ.get("EDGEFL_PARITY_SAMPLES", "0"))
FEW = [("pfl-mfe", "uci-har", 3), pytest.param("pfl-mfe", "uci-har", 8, marks=pytest.mark.slow)]
CASES = [(kind, data, 8) for data in DATA for kind in KINDS] + [
    ("pfl-mfe", data, bits) for data in DATA for bits in (3, 4)
]
CASES.append(("fedmix", "fashion-mnist", 3))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "data", "weights"), CASES if SAMPLES else FEW)
def test_every_target_gives_the_same_bytes(kind, data, weights, mixture_of) -> None:
    for target in TARGETS.values():
        if reason := explain_not_runnable(target):
            pytest.skip(reason)
    made = mixture_of(kind, data)
    count = SAMPLES or 20
    x, y = (
        np.concatenate([getattr(made.shard, f"{name}_test"), getattr(made.shard, f"{name}_train")])[:count]
        for name in "xy"
    )
    assert len(x) == count
    model = made.model if weights == 8 else with_few_values(made.model, made.shard.x_train[:256], weights)
    # An untrained expert may have few different values
    assert weights == 8 or "fully_connected_narrow" in generate_c(model).files["model.c"]
    golden = make_golden(model, x, y)
    results = run_everywhere(generate_c(model).files, golden, tuple(TARGETS.values()), "cortex-m4")
    for result in results:
        # The M0's machine has 16 KB of RAM, 256 KB of flash
        assert result.status == EQUAL or result.name in ("cortex-m0", "cortex-m0plus"), result.reason
        print(
            f"{kind} {data}, dense weights of {weights} bits, {result.name}: {result.samples} samples "
            f"{result.status} {result.reason}"
        )
    assert len(np.unique(golden.outputs, axis=0)) > count // 10, "a model of one answer proves nothing"
