"""One process of the simulate benchmark: `build CONFIG PLAN SAMPLES STEPS`, or
`edgefl|keras-fit|tf-function CONFIG PLAN SAMPLES EPOCHS`.

Each peer trains the same network from the same weights on the same batches, and prints the first epoch's loss
as evidence.
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

from edgefl.base.config import FederationConfig, load_config
from edgefl.program.plan.spec import load_plan, save_plan

Arrays = dict[str, Any]
Epoch = Callable[[], float]
"""Train for an epoch and return its mean loss."""


def build(config: FederationConfig, plan: Path, samples: Path, steps: int) -> None:
    """Compile the plan and write weights, random samples and the order of the samples."""
    from edgefl.learning.algorithms.plans import build_plan

    built, weights = build_plan(config)
    save_plan(built, plan)
    train = built.spec.find_signature("train")
    rng = np.random.default_rng(1)
    count = train.batch_size * steps
    x = rng.random((count, *built.spec.input_shape), dtype=np.float32)
    y = rng.integers(0, built.spec.num_classes, count)
    order = np.random.default_rng(1).permutation(count)  # the learner draws the same order from this seed
    arrays: dict[str, Any] = {
        "x": x,
        "y": y,
        "order": order,
        "batch_size": train.batch_size,
        **train.hyper,
        **weights,
    }
    np.savez(samples, **arrays)


def make_edgefl_epoch(config: FederationConfig, plan: Path, arrays: Arrays) -> Epoch:
    """Return an epoch of the device's learner, with all copies between numpy and the runtime."""
    from edgefl.program.learner.litert import LiteRTLearner

    learner = LiteRTLearner(load_plan(plan), threads=1)
    weights = {spec.name: arrays[spec.name] for spec in learner.spec.weights}
    return lambda: learner.fit(
        "train", weights, {"x": arrays["x"]}, arrays["y"], epochs=1, rng=np.random.default_rng(1)
    )[1]


def _make_keras_model(config: FederationConfig, arrays: Arrays) -> tuple[Any, Any, Any]:
    import keras

    from edgefl.program.models import build_model

    model: Any = build_model(config.model)
    for layer in model.layers:
        if layer.weights:
            layer.set_weights([arrays[f"{layer.name}/{kind}"] for kind in ("kernel", "bias")])
    optimizer = keras.optimizers.SGD(float(arrays["learning_rate"]), momentum=float(arrays["momentum"]))
    return model, optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_keras_fit_epoch(config: FederationConfig, plan: Path, arrays: Arrays) -> Epoch:
    """Return an epoch of `Model.fit` with the defaults of Keras."""
    model, optimizer, loss = _make_keras_model(config, arrays)
    model.compile(optimizer=optimizer, loss=loss)
    x = arrays["x"][arrays["order"]]
    y = arrays["y"][arrays["order"]]
    size = int(arrays["batch_size"])
    return lambda: float(model.fit(x, y, batch_size=size, shuffle=False, verbose=0).history["loss"][0])


def make_tf_function_epoch(config: FederationConfig, plan: Path, arrays: Arrays) -> Epoch:
    """Return an epoch of steps under tf.function, with weights and slots in TensorFlow's variables."""
    import tensorflow as tf

    model, optimizer, loss_of = _make_keras_model(config, arrays)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    x = arrays["x"]
    y = arrays["y"]
    batches = np.split(arrays["order"], len(y) // int(arrays["batch_size"]))

    def epoch() -> float:
        return sum(float(step(tf.constant(x[index]), tf.constant(y[index]))) for index in batches) / len(
            batches
        )

    return epoch


EPOCHS: dict[str, tuple[Callable[[FederationConfig, Path, Arrays], Epoch], str]] = {
    "edgefl": (make_edgefl_epoch, "ai-edge-litert"),
    "keras-fit": (make_keras_fit_epoch, "keras"),
    "tf-function": (make_tf_function_epoch, "tensorflow"),
}
"""Maps a peer to the function that makes its epoch, and to the package whose version is reported."""


def main(kind: str, config_file: Path, plan: Path, samples: Path, count: int) -> None:
    """Run the part of this process, and print the result as one JSON line."""
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
        arrays = dict(file)
    epoch = make(config, plan, arrays)
    steps = len(arrays["y"]) // int(arrays["batch_size"])
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
