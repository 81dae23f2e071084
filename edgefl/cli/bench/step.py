"""One process of `edgefl bench device`.

`build PLAN CONFIG` compiles the plan. `litert PLAN STEPS`, `keras PLAN STEPS` and `torch PLAN STEPS` measure
milliseconds per training step and peak memory. `torch` needs the variable KERAS_BACKEND=torch. `predict PLAN
STEPS` measures milliseconds per inference of one sample and peak memory.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config import ModelConfig, load_config
from edgefl.base.system.host import read_peak_rss_mb
from edgefl.base.types import Array, Weights
from edgefl.program.learner.base import iterate_batches
from edgefl.program.plan.spec import PREDICT_SINGLE, Plan, SignatureSpec, load_plan, save_plan


@dataclass(frozen=True)
class RandomInputs:
    """Random weights and samples, the same in both processes.

    Attributes:
        weights: float32 arrays by the names of the plan.
        data: samples for each data tensor of the signature, such as `x`: shape (n, ...), float32.
        y: labels, shape (n,), int64, or numbers to predict, shape (n, outputs), float32.
    """

    weights: Weights
    data: Mapping[str, Array]
    y: NDArray[Any]


def make_litert_epoch(plan: Plan) -> Callable[[RandomInputs], None]:
    """Return a function that trains one epoch with the learner of a device.

    It includes all copies between numpy and the runtime.
    """
    from edgefl.program.learner.litert import LiteRTLearner

    learner = LiteRTLearner(plan, threads=1)

    def run_epoch(inputs: RandomInputs) -> None:
        rng = np.random.default_rng(1)
        learner.fit(choose_signature(plan, "train"), inputs.weights, inputs.data, inputs.y, epochs=1, rng=rng)

    return run_epoch


def make_litert_inference(plan: Plan) -> Callable[[RandomInputs], None]:
    """Return a function that predicts samples with the learner of a device, in the plan's batches."""
    from edgefl.program.learner.litert import LiteRTLearner

    learner = LiteRTLearner(plan, threads=1)

    def run_inference(inputs: RandomInputs) -> None:
        learner.predict(choose_signature(plan, "predict"), inputs.weights, inputs.data)

    return run_inference


def choose_signature(plan: Plan, kind: str) -> str:
    """Return the signature of a kind that trains or predicts with one model, or the first of that kind.

    Args:
        kind: `train` or `predict`.
    """
    names = [signature.name for signature in plan.spec.signatures if signature.kind == kind]
    preferred = {"train": "train", "predict": PREDICT_SINGLE}[kind]
    return preferred if preferred in names else names[0]


def make_random_inputs(plan: Plan, signature: SignatureSpec, count: int) -> RandomInputs:
    """Return random weights, samples and labels for a signature."""
    rng = np.random.default_rng(1)
    weights = {
        tensor.name: rng.normal(0, 0.05, tensor.shape).astype(np.float32) for tensor in plan.spec.weights
    }
    data = {spec.name: rng.random((count, *spec.shape[1:]), dtype=np.float32) for spec in signature.data}
    y: NDArray[Any] = rng.integers(0, plan.spec.num_classes, count)
    if signature.label is not None:
        y = rng.random((count, *signature.label.shape[1:]), dtype=np.float32)
    return RandomInputs(weights, data, y)


def make_keras_epoch(plan: Plan) -> Callable[[RandomInputs], None]:
    """Return a function that trains one epoch of the same objective with Keras.

    The step is a tf.function on one thread. Weights and slots stay in TensorFlow between steps.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from edgefl.learning.algorithms.plans import make_keras_learner

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
                "d_x": tf.constant(inputs.data["x"][index]),
                "d_y": tf.constant(inputs.y[index], tf.int32),
                "d_sample_weight": tf.constant(weight),
            }
            out = step(**batch, **state, **noise, **fixed)
            state = {name: out[name] for name in state}
        float(out["loss"])

    return run_epoch


def make_torch_epoch(plan: Plan) -> Callable[[RandomInputs], None]:
    """Return a function that trains one epoch of the same Keras model with PyTorch, on one thread.

    Keras computes the layers with PyTorch, and PyTorch the gradients and the step of SGD. The model has its
    initial weights.
    """
    import keras
    import torch

    from edgefl.program.models import build_model

    torch.set_num_threads(1)
    spec = plan.spec
    config = ModelConfig(
        name=spec.model,
        input_shape=spec.input_shape,
        num_classes=spec.num_classes,
        options=dict(spec.model_options),
    )
    model = build_model(config)
    signature = spec.find_signature("train")
    measure_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = torch.optim.SGD(
        [variable.value for variable in model.trainable_variables], lr=signature.hyper["learning_rate"]
    )

    def run_epoch(inputs: RandomInputs) -> None:
        for index, _ in iterate_batches(len(inputs.y), signature.batch_size, np.random.default_rng(1)):
            optimizer.zero_grad()
            logits = model(torch.from_numpy(inputs.data["x"][index]), training=True)
            loss = measure_loss(torch.from_numpy(inputs.y[index]), logits)
            loss.backward()
            optimizer.step()
        float(loss)

    return run_epoch


MAKERS = {
    "litert": make_litert_epoch,
    "keras": make_keras_epoch,
    "torch": make_torch_epoch,
    "predict": make_litert_inference,
}


def main(kind: str, plan: Path, argument: str) -> None:
    """Compile the plan or measure steps, and print the result as one JSON line.

    Args:
        kind: `build`, `litert`, `keras`, `torch` or `predict`.
        argument: the configuration file to build from, or the number of steps of a measurement.
    """
    if kind == "build":
        from edgefl.learning.algorithms.plans import build_plan

        save_plan(build_plan(load_config(Path(argument)))[0], plan)
        print("{}")
        return
    import_module("edgefl.protocol.transport.link")  # a device process also needs the memory of its link
    loaded_plan = load_plan(plan)
    run = MAKERS[kind](loaded_plan)
    signature = loaded_plan.spec.find_signature(
        choose_signature(loaded_plan, "predict" if kind == "predict" else "train")
    )
    steps = int(argument)
    count = signature.batch_size * steps
    inputs = make_random_inputs(loaded_plan, signature, count)
    times = []
    for _ in range(4):  # the first warms up
        start = time.perf_counter()
        run(inputs)
        times.append((time.perf_counter() - start) * 1000)
    repeats = count if kind == "predict" else steps
    print(json.dumps({"ms": min(times[1:]) / repeats, "mb": read_peak_rss_mb()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
