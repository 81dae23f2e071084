"""Targets run at the same time, with progress. A sentence names the places with equal outputs."""

import os
import threading

import numpy as np

from firmware_export.certificate import parity
from firmware_export.certificate.golden import GoldenVectors
from firmware_export.certificate.parity import (
    EQUAL,
    count_cores,
    describe_equal_outputs,
    explain_not_runnable,
    run_everywhere,
)
from firmware_export.firmware.targets import TARGETS


def test_every_core_runs_a_target_and_progress_counts_them(hand, monkeypatch) -> None:
    """The barrier breaks, and with it the run, unless three targets start at the same time."""
    barrier = threading.Barrier(3)

    def wait_for_others(target) -> str:
        barrier.wait(60)
        return explain_not_runnable(target)

    monkeypatch.setattr(parity, "count_cores", lambda: 3)
    monkeypatch.setattr(parity, "explain_not_runnable", wait_for_others)
    inputs = np.random.default_rng(1).integers(-128, 128, (5, 3)).astype(np.int8)
    golden = GoldenVectors(
        x=np.zeros((5, 3), np.float32),
        y=np.zeros(0, np.int64),
        inputs=inputs,
        outputs=hand.compute_outputs(inputs),
    )
    targets = [TARGETS[name] for name in ("cortex-m3", "rv32imc", "host")]
    finished = []
    results = run_everywhere(
        hand.FILES, golden, targets, "host", progress=lambda *counts: finished.append(counts)
    )
    assert [result.name for result in results] == ["cortex-m3", "rv32imc", "host"]
    assert all(result.status == EQUAL or "not installed" in result.reason for result in results)
    assert finished == [(1, 3), (2, 3), (3, 3)]


def test_a_limit_on_the_cores_is_respected() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert count_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_sentence_has_the_number_of_samples_of_each_place() -> None:
    same = {"tflite-micro": 40, "host": 40, "cortex-m4": 40}
    assert describe_equal_outputs(same, "samples") == (
        "40 samples, every output byte the same: tflite-micro, host, cortex-m4"
    )
    different = {"tflite-micro": 183, "cortex-m0": 50, "cortex-m4": 50, "host": 183}
    assert describe_equal_outputs(different, "random inputs") == (
        "183 random inputs, every output byte the same: tflite-micro, host; the first 50 of them: cortex-m0, "
        "cortex-m4"
    )
