"""One process of `edgefl bench device`: `build CONFIG PLAN`, or `litert|keras CONFIG PLAN STEPS`: ms a step,
peak memory.
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
from edgefl.learner.base import batches
from edgefl.plan.spec import Plan, load_plan, save_plan
from edgefl.system.host import peak_rss_mb
from edgefl.types import Array, Labels, Weights


@dataclass(frozen=True)
class Drawn:
    """Random weights and samples, the same in both processes."""

    weights: Weights
    x: Array
    y: Labels


def timed_litert(plan: Plan) -> Callable[[Drawn], None]:
    """Return an epoch of the device's learner, all copies between numpy and the runtime included."""
    from edgefl.learner.litert import LiteRTLearner

    learner = LiteRTLearner(plan, threads=1)

    def epoch(d: Drawn) -> None:
        learner.fit("train", d.weights, {"x": d.x}, d.y, epochs=1, rng=np.random.default_rng(1))

    return epoch


def timed_keras(plan: Plan) -> Callable[[Drawn], None]:
    """Return an epoch of the same objective as a tf.function on one thread.

    Weights and slots stay in TensorFlow between steps.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from edgefl.algorithms.plans import keras_learner

    step = keras_learner(plan.spec).traced("train")
    signature = plan.spec.signature("train")
    fixed = {f"h_{name}": tf.constant(value) for name, value in signature.hyper.items()}

    def epoch(d: Drawn) -> None:
        rng = np.random.default_rng(1)
        kept = {f"t_{i}": tf.constant(d.weights[spec.name]) for i, spec in enumerate(signature.trained)}
        kept |= {f"s_{i}": tf.zeros(spec.shape) for i, spec in enumerate(signature.slots)}
        for index, weight in batches(len(d.y), signature.batch_size, rng):
            noise = {
                f"n_{i}": tf.constant(rng.random(spec.shape, dtype=np.float32))
                for i, spec in enumerate(signature.noise)
            }
            batch = {
                "d_x": tf.constant(d.x[index]),
                "d_y": tf.constant(d.y[index], tf.int32),
                "d_sample_weight": tf.constant(weight),
            }
            out = step(**batch, **kept, **noise, **fixed)
            kept = {name: out[name] for name in kept}
        float(out["loss"])

    return epoch


def main(kind: str, config: Path, plan: Path, steps: int = 0) -> None:
    """Do this process's part and print it as one JSON line."""
    if kind == "build":
        from edgefl.algorithms.plans import build_plan

        save_plan(build_plan(load_config(config))[0], plan)
        print("{}")
        return
    import_module("edgefl.transport.link")  # a device process holds its link to the broker too
    the_plan = load_plan(plan)
    epoch = timed_litert(the_plan) if kind == "litert" else timed_keras(the_plan)
    spec = the_plan.spec
    rng = np.random.default_rng(1)
    count = spec.signature("train").batch_size * steps
    weights = {each.name: rng.normal(0, 0.05, each.shape).astype(np.float32) for each in spec.weights}
    drawn = Drawn(
        weights,
        rng.random((count, *spec.input_shape), dtype=np.float32),
        rng.integers(0, spec.num_classes, count),
    )
    times = []
    for _ in range(4):  # the first warms up
        start = time.perf_counter()
        epoch(drawn)
        times.append((time.perf_counter() - start) / steps * 1000)
    print(json.dumps({"ms": min(times[1:]), "mb": peak_rss_mb()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
