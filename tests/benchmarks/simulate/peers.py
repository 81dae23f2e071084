"""One process of the simulate benchmark: `build CONFIG PLAN SAMPLES STEPS`, or
`edgefl|keras-fit|tf-function CONFIG PLAN SAMPLES EPOCHS`.

Each peer trains the same network from the same weights on the same batches, and tells the first epoch's loss
to prove it.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.config import FederationConfig, load_config
from edgefl.plan.spec import load_plan, save_plan

Given = dict[str, Any]
Epoch = Callable[[], float]
"""Train for an epoch and return its mean loss."""


def build(config: FederationConfig, plan: Path, samples: Path, steps: int) -> None:
    """Compile the plan and write weights, random samples and the order of the samples."""
    from edgefl.algorithms.plans import build_plan

    built, weights = build_plan(config)
    save_plan(built, plan)
    train = built.spec.find_signature("train")
    rng = np.random.default_rng(1)
    count = train.batch_size * steps
    x = rng.random((count, *built.spec.input_shape), dtype=np.float32)
    y = rng.integers(0, built.spec.num_classes, count)
    order = np.random.default_rng(1).permutation(count)  # what the learner draws from this seed
    held: dict[str, Any] = {
        "x": x,
        "y": y,
        "order": order,
        "batch_size": train.batch_size,
        **train.hyper,
        **weights,
    }
    np.savez(samples, **held)


def edgefl_epoch(config: FederationConfig, plan: Path, given: Given) -> Epoch:
    """The device's learner, all copies between numpy and the runtime included."""
    from edgefl.learner.litert import LiteRTLearner

    learner = LiteRTLearner(load_plan(plan), threads=1)
    weights = {spec.name: given[spec.name] for spec in learner.spec.weights}
    return lambda: learner.fit(
        "train", weights, {"x": given["x"]}, given["y"], epochs=1, rng=np.random.default_rng(1)
    )[1]


def _keras(config: FederationConfig, given: Given) -> tuple[Any, Any, Any]:
    import keras

    from edgefl.models import build_model

    model: Any = build_model(config.model)
    for layer in model.layers:
        if layer.weights:
            layer.set_weights([given[f"{layer.name}/{kind}"] for kind in ("kernel", "bias")])
    optimizer = keras.optimizers.SGD(float(given["learning_rate"]), momentum=float(given["momentum"]))
    return model, optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def keras_fit_epoch(config: FederationConfig, plan: Path, given: Given) -> Epoch:
    """`Model.fit` as Keras compiles it by default."""
    model, optimizer, loss = _keras(config, given)
    model.compile(optimizer=optimizer, loss=loss)
    x = given["x"][given["order"]]
    y = given["y"][given["order"]]
    size = int(given["batch_size"])
    return lambda: float(model.fit(x, y, batch_size=size, shuffle=False, verbose=0).history["loss"][0])


def tf_function_epoch(config: FederationConfig, plan: Path, given: Given) -> Epoch:
    """A training step under tf.function, weights and slots in TensorFlow's variables."""
    import tensorflow as tf

    model, optimizer, loss_of = _keras(config, given)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    x = given["x"]
    y = given["y"]
    batches = np.split(given["order"], len(y) // int(given["batch_size"]))

    def epoch() -> float:
        return sum(float(step(tf.constant(x[index]), tf.constant(y[index]))) for index in batches) / len(
            batches
        )

    return epoch


EPOCHS: dict[str, tuple[Callable[[FederationConfig, Path, Given], Epoch], str]] = {
    "edgefl": (edgefl_epoch, "ai-edge-litert"),
    "keras-fit": (keras_fit_epoch, "keras"),
    "tf-function": (tf_function_epoch, "tensorflow"),
}
"""Peer -> (its epoch, the package whose version stands for it)."""


def main(kind: str, config_file: Path, plan: Path, samples: Path, count: int) -> None:
    """Do this process's part and print it as one JSON line."""
    config = load_config(config_file)
    if kind == "build":
        build(config, plan, samples, count)
        print("{}")
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    make, package = EPOCHS[kind]
    if kind != "edgefl":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    with np.load(samples) as file:
        given = dict(file)
    epoch = make(config, plan, given)
    steps = len(given["y"]) // int(given["batch_size"])
    first = epoch()
    times = []
    cpu = []
    for _ in range(count):
        start = time.perf_counter()
        used = time.process_time()
        epoch()
        times.append((time.perf_counter() - start) / steps * 1000)
        cpu.append((time.process_time() - used) / steps * 1000)
    print(json.dumps({"ms": times, "cpu_ms": cpu, "loss": first, "version": f"{package} {version(package)}"}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
