"""Runs under QEMU: `guest.py PLAN STEPS` trains three epochs, and marks the start and the end of each.

It imports only what a device needs for training. The marks are read by `count_instructions.c`.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.runtime import describe_runtime
from edgefl.program.plan.spec import load_plan

GETPRIORITY = 141  # on aarch64
MARK = 777
EPOCHS = 3


def mark(place: int) -> None:
    """Let the plugin print the number of instructions so far."""
    ctypes.CDLL(None).syscall(GETPRIORITY, MARK, place)


def main(directory: Path, steps: int) -> None:
    """Print the runtime, and train random weights on random samples."""
    print(describe_runtime("litert"))
    plan = load_plan(directory)
    learner = LiteRTLearner(plan, threads=1)
    rng = np.random.default_rng(1)
    count = plan.spec.find_signature("train").batch_size * steps
    weights = {spec.name: rng.normal(0, 0.05, spec.shape).astype(np.float32) for spec in plan.spec.weights}
    x = rng.random((count, *plan.spec.input_shape), dtype=np.float32)
    y = rng.integers(0, plan.spec.num_classes, count)
    for epoch in range(EPOCHS):
        mark(2 * epoch)
        learner.fit("train", weights, {"x": x}, y, epochs=1, rng=np.random.default_rng(1))
        mark(2 * epoch + 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
