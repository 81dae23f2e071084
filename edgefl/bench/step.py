"""One process of `edgefl bench device`: `build CONFIG PLAN`, or `litert|keras CONFIG PLAN STEPS`: ms a step, peak memory."""

import json
import sys
import time
from pathlib import Path

import numpy as np

from edgefl.config import load_config
from edgefl.learner.base import Learner
from edgefl.memory import peak_rss_mb
from edgefl.plan.spec import load_plan, save_plan


def make_learner(kind: str, config: Path, plan: Path) -> Learner:
    """Return the learner of this process; only the Keras one imports TensorFlow."""
    if kind == "litert":
        from edgefl.learner.litert import LiteRTLearner

        return LiteRTLearner(load_plan(plan), threads=1)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from edgefl.algorithms import full_options, objectives
    from edgefl.learner.keras import KerasLearner
    from edgefl.plan.build import make_network

    settings = load_config(config)
    options = full_options(settings.algorithm, settings.options)
    return KerasLearner(load_plan(plan).spec, objectives(settings.algorithm, make_network(settings), options))


def main(kind: str, config: Path, plan: Path, steps: int = 0) -> None:
    """Do this process's part and print it as one JSON line."""
    if kind == "build":
        from edgefl.plan.build import build_plan

        save_plan(build_plan(load_config(config))[0], plan)
        print("{}")
        return
    learner = make_learner(kind, config, plan)
    signature = learner.spec.signature("train")
    rng = np.random.default_rng(1)
    count = signature.batch_size * steps
    x = rng.random((count, *learner.spec.input_shape), dtype=np.float32)
    y = rng.integers(0, learner.spec.num_classes, count)
    weights = {spec.name: rng.normal(0, 0.05, spec.shape).astype(np.float32) for spec in learner.spec.weights}
    few = signature.batch_size * 3
    learner.fit("train", weights, {"x": x[:few]}, y[:few], epochs=1, rng=rng)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        learner.fit("train", weights, {"x": x}, y, epochs=1, rng=rng)
        times.append((time.perf_counter() - start) / steps * 1000)
    print(json.dumps({"ms": min(times), "mb": peak_rss_mb()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
