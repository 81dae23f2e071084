"""One process of `edgefl bench device`.

`build CONFIG PLAN` compiles the plan. `litert CONFIG PLAN STEPS` and `keras CONFIG PLAN STEPS` measure
milliseconds per step and peak memory.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from edgefl.config import load_config
from edgefl.learner.base import iterate_batches
from edgefl.plan.spec import Plan, load_plan, save_plan
from edgefl.system.host import read_peak_rss_mb
from edgefl.types import Array, Labels, Weights


@dataclass(frozen=True)
class RandomInputs:
    """Random weights and samples, the same in both processes.

    Attributes:
        weights: float32 arrays by the names of the plan.
        x: samples, shape (n, *input_shape), float32.
        y: labels, shape (n,), int64.
    """

    weights: Weights
    x: Array
    y: Labels


def make_litert_epoch(plan: Plan) -> Callable[[RandomInputs], None]:
    """Return a function that trains one epoch with the learner of a device.

    It includes all copies between numpy and the runtime.
    """
    from edgefl.learner.litert import LiteRTLearner

    learner = LiteRTLearner(plan, threads=1)

    def run_epoch(inputs: RandomInputs) -> None:
        learner.fit(
            "train", inputs.weights, {"x": inputs.x}, inputs.y, epochs=1, rng=np.random.default_rng(1)
        )

    return run_epoch


def make_keras_epoch(plan: Plan) -> Callable[[RandomInputs], None]:
    """Return a function that trains one epoch of the same objective with Keras.

    The step is a tf.function on one thread. Weights and slots stay in TensorFlow between steps.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from edgefl.algorithms.plans import make_keras_learner

    step = make_keras_learner(plan.spec).traced("train")
    signature = plan.spec.find_signature("train")
    fixed = {f"h_{name}": tf.constant(value) for name, value in signature.hyper.items()}

    def run_epoch(inputs: RandomInputs) -> None:
        rng = np.random.default_rng(1)
        state = {f"t_{i}": tf.constant(inputs.weights[spec.name]) for i, spec in enumerate(signature.trained)}
        state |= {f"s_{i}": tf.zeros(spec.shape) for i, spec in enumerate(signature.slots)}
        for index, weight in iterate_batches(len(inputs.y), signature.batch_size, rng):
            noise = {
                f"n_{i}": tf.constant(rng.random(spec.shape, dtype=np.float32))
                for i, spec in enumerate(signature.noise)
            }
            batch = {
                "d_x": tf.constant(inputs.x[index]),
                "d_y": tf.constant(inputs.y[index], tf.int32),
                "d_sample_weight": tf.constant(weight),
            }
            out = step(**batch, **state, **noise, **fixed)
            state = {name: out[name] for name in state}
        float(out["loss"])

    return run_epoch


def main(kind: str, config: Path, plan: Path, steps: int = 0) -> None:
    """Compile the plan or measure steps, and print the result as one JSON line.

    Args:
        kind: `build`, `litert` or `keras`.
        config: the configuration file.
        plan: the directory of the plan.
        steps: number of steps per measured epoch.
    """
    if kind == "build":
        from edgefl.algorithms.plans import build_plan

        save_plan(build_plan(load_config(config))[0], plan)
        print("{}")
        return
    import_module("edgefl.transport.link")  # a device process also needs the memory of its link
    loaded_plan = load_plan(plan)
    run_epoch = make_litert_epoch(loaded_plan) if kind == "litert" else make_keras_epoch(loaded_plan)
    spec = loaded_plan.spec
    rng = np.random.default_rng(1)
    count = spec.find_signature("train").batch_size * steps
    weights = {tensor.name: rng.normal(0, 0.05, tensor.shape).astype(np.float32) for tensor in spec.weights}
    inputs = RandomInputs(
        weights,
        rng.random((count, *spec.input_shape), dtype=np.float32),
        rng.integers(0, spec.num_classes, count),
    )
    times = []
    for _ in range(4):  # the first warms up
        start = time.perf_counter()
        run_epoch(inputs)
        times.append((time.perf_counter() - start) / steps * 1000)
    print(json.dumps({"ms": min(times[1:]), "mb": read_peak_rss_mb()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
