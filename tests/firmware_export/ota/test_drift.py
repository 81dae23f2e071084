"""Drift counters of the firmware's own C, compiled for this machine."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.ota.drift import GateUsage, measure_drift, read_counters

SOURCE = Path(__file__).parents[3] / "firmware_export/templates/drift"
SIZE = 16 + 8 * 3 + 8


@pytest.fixture(scope="session")
def counter_library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc here; apt install gcc")
    home = tmp_path_factory.mktemp("drift")
    (home / "model.h").write_text("#define MODEL_EXPERTS 3\n")
    flags = [
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-O2",
        "-fPIC",
        "-shared",
        f"-I{home}",
        f"-I{SOURCE}",
    ]
    subprocess.run([compiler, *flags, SOURCE / "drift.c", "-o", home / "drift.so"], check=True)
    return ctypes.CDLL(str(home / "drift.so"))


def count_gates(counter_library: Any, gates: Any) -> bytes:
    struct = (ctypes.c_uint8 * SIZE)()
    counter_library.drift_begin(struct)
    for gate in np.asarray(gates, np.int8):
        counter_library.drift_add(struct, gate.ctypes.data_as(ctypes.c_char_p))
    return bytes(struct)


def test_counts_of_three_inferences_match_hand_computed_values(counter_library: Any) -> None:
    """Check the counts of three inferences by hand.

    Shares are 1/2, 1/2, 0 (a tie, one bit), then 255/256, 0, 0, then 1/4, 1/4, 1/2 (1.5 bits).
    """
    usage = read_counters(count_gates(counter_library, [[0, 0, -128], [127, -128, -128], [-64, -64, 0]]))
    assert (usage.inferences, usage.chosen, usage.ties) == (3, (2, 0, 1), 1)
    assert usage.shares == pytest.approx(((128 + 255 + 64) / 768, (128 + 64) / 768, 128 / 768))
    assert usage.entropy_bits == pytest.approx((1 + 255 / 256 * np.log2(256 / 255) + 1.5) / 3, abs=1e-4)


def test_tie_below_the_largest_gate_is_not_counted(counter_library: Any) -> None:
    assert (
        read_counters(count_gates(counter_library, [[-100, -100, 72], [5, 5, -100], [-100, 5, 5]])).ties == 2
    )


def test_counts_of_random_gates_equal_numpy(counter_library: Any) -> None:
    gates = np.random.default_rng(1).integers(-128, 128, (2000, 3), np.int8)
    usage = read_counters(count_gates(counter_library, gates))
    assert usage.chosen == tuple(np.bincount(gates.argmax(axis=1), minlength=3))
    assert usage.ties == int(((gates == gates.max(axis=1, keepdims=True)).sum(axis=1) > 1).sum())
    p = (gates.astype(float) + 128) / 256
    assert usage.shares == pytest.approx(p.mean(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        assert usage.entropy_bits == pytest.approx(
            np.nan_to_num(-p * np.log2(p)).sum(axis=1).mean(), abs=1e-4
        )


def make_usage(*chosen: int) -> GateUsage:
    return GateUsage(
        inferences=sum(chosen),
        chosen=chosen,
        shares=tuple(c / sum(chosen) for c in chosen),
        entropy_bits=0.5,
        ties=0,
    )


def test_stability_index_matches_hand_computed_value() -> None:
    """Shares of .5 and .5 that become .8 and .2 give .3 ln 1.6 - .3 ln .4 = .3 ln 4."""
    drift = measure_drift(make_usage(80000, 20000), make_usage(50000, 50000))
    assert drift.psi == pytest.approx(0.3 * np.log(4), rel=1e-3)
    assert drift.drifted
    assert measure_drift(make_usage(52000, 48000), make_usage(50000, 50000)).drifted is False


def test_few_samples_raise_no_alarm() -> None:
    drift = measure_drift(make_usage(4, 0), make_usage(2, 2))
    assert drift.psi > 0.25
    assert not drift.drifted


def test_stability_index_rarely_exceeds_noise_without_drift() -> None:
    rng = np.random.default_rng(2)
    draws = rng.multinomial(500, (0.5, 0.3, 0.2), (4000, 2))
    above = [measure_drift(make_usage(*map(int, a)), make_usage(*map(int, b))) for a, b in draws]
    assert np.mean([drift.psi > drift.noise for drift in above]) < 0.004


def test_invalid_counters_are_refused_with_a_reason(counter_library: Any) -> None:
    whole = count_gates(counter_library, [[0, 0, 0]])
    for bad, text in (
        (b"", "EFLD"),
        (whole[:-1], "got 47"),
        (whole[:4] + b"\xff" * 4 + whole[8:], "experts have"),
        (whole[:16] + b"\7" + whole[17:], "damaged"),
    ):
        with pytest.raises(ExportError, match=text):
            read_counters(bad)
    with pytest.raises(ExportError, match="of this export's firmware"):
        measure_drift(make_usage(1, 2), make_usage(1, 2, 3))
    with pytest.raises(ExportError, match="no inferences"):
        measure_drift(read_counters(count_gates(counter_library, np.empty((0, 3)))), make_usage(1, 2, 3))
