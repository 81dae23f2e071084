"""Train a Keras model on one client's samples: the part of the Flower client that needs TensorFlow.

    python keras_trainer.py SOCKET

Flower starts a process for each message to a client. TensorFlow takes seconds to import, so it stays in this
process, and the ClientApp sends its task to this process. The module runs in Flower's Python and imports
nothing of edgefl. Its training loop uses only the public API of Keras and TensorFlow.
"""

import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.connection import Listener
from typing import Any

import numpy as np

WAITING_TASKS = 16


def get_named_variables(model: Any) -> dict[str, Any]:
    """Return the trained variables of a Keras model by their names in plans, such as `conv1/kernel`."""
    return {variable.path.removeprefix(f"{model.name}/"): variable for variable in model.trainable_variables}


class Training:
    """SGD on a Keras model. TensorFlow traces the step once.

    Args:
        model_file: the Keras model. It returns logits.
        learning_rate: learning rate of SGD.
        momentum: momentum of SGD. It starts at zero in each `fit`.
        proximal_mu: weight of the proximal term mu / 2 |w - w_received|^2. 0 leaves it out.
    """

    def __init__(self, model_file: str, learning_rate: float, momentum: float, proximal_mu: float) -> None:
        import keras
        import tensorflow as tf

        model: Any = keras.saving.load_model(model_file, compile=False)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        named = get_named_variables(model)
        variables = list(named.values())
        received = [tf.Variable(variable) for variable in variables]
        optimizer = keras.optimizers.SGD(learning_rate, momentum=momentum)
        optimizer.build(variables)

        @tf.function(autograph=False, reduce_retracing=True)  # type: ignore[untyped-decorator]
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
                if proximal_mu:
                    pairs = zip(variables, received, strict=True)
                    loss += proximal_mu / 2 * tf.add_n([tf.reduce_sum(tf.square(w - w0)) for w, w0 in pairs])
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        self._variables = named
        self._received = dict(zip(named, received, strict=True))
        self._optimizer = optimizer
        self._optimizer_start = [variable.numpy() for variable in optimizer.variables]
        self._step = step

    def fit(
        self,
        weights: Mapping[str, np.ndarray],
        x: np.ndarray,
        y: np.ndarray,
        orders: Sequence[np.ndarray],
        batch_size: int,
    ) -> tuple[dict[str, np.ndarray], float]:
        """Return the trained weights by name, and the mean loss over the samples of the last epoch.

        Args:
            weights: the received weights by name, see `named_variables`.
            x: samples, float32[n, ...].
            y: labels, int64[n].
            orders: the order of the samples in each epoch, int64[n].
            batch_size: samples in a batch. The last batch of an epoch has the remaining samples.
        """
        for name, variable in self._variables.items():
            variable.assign(weights[name])
            self._received[name].assign(weights[name])
        for variable, value in zip(self._optimizer.variables, self._optimizer_start, strict=True):
            variable.assign(value)
        total = 0.0
        for order in orders:
            total = 0.0
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                total += float(self._step(x[rows], y[rows])) * len(rows)
        return {name: variable.numpy() for name, variable in self._variables.items()}, total / len(y)


_training = cache(Training)


def run_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trained weights, the number of samples and the loss of a task; see `CLIENT` in `flower_app`.

    The samples are shuffled again in each epoch, from the seed of the task.
    """
    with np.load(task["samples"]) as file:
        x = file["x_train"]
        y = file["y_train"]
    rng = np.random.default_rng(task["seed"])
    orders = [rng.permutation(len(y)) for _ in range(task["epochs"])]
    training = _training(task["model"], task["learning_rate"], task["momentum"], task["proximal_mu"])
    weights, loss = training.fit(task["weights"], x, y, orders, task["batch_size"])
    return {"weights": weights, "num_samples": len(y), "loss": loss}


def serve(socket: str) -> None:
    """Run tasks until this process is stopped. The answer to a failed task has the key `error`."""
    with Listener(socket, "AF_UNIX", WAITING_TASKS) as listener:
        while True:
            with listener.accept() as connection:
                try:
                    answer = run_task(connection.recv())
                except Exception:
                    answer = {"error": traceback.format_exc()}
                connection.send(answer)


if __name__ == "__main__":
    serve(sys.argv[1])
