"""A learner that trains the same local model only once.

All algorithms of a benchmark are compared with the clients' local models. These depend only on samples,
initial weights and random draws, so they are the same for each algorithm. Their training takes most of the
time of the benchmark.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.system.files import write_atomic
from edgefl.base.types import Array, Labels, Weights
from edgefl.program.learner.base import DataTensors, Learner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import PREDICT_SINGLE, TRAIN_SINGLE, Plan
from edgefl.protocol.wire.tensors import decode_weights, encode_weights


class CachedLearner:
    """Runs a plan, and reads single models that were already trained from a directory. See `Learner`.

    The result has the same bits as without the directory. The key of a model is a digest of everything that
    its training depends on. The random generator continues as after the training.

    Args:
        directory: contains the trained models. Several processes may share it.

    Attributes:
        saved_s: processor time that the training of the cached models took, in seconds.
    """

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._learner: Learner = LiteRTLearner(plan)
        self._directory = directory
        self.name = self._learner.name
        self.spec = plan.spec
        self.saved_s = 0.0
        model = {
            "model": plan.spec.model,
            "model_options": plan.spec.model_options,
            "signatures": [
                asdict(signature) for signature in plan.spec.signatures if signature.name == TRAIN_SINGLE
            ],
            "template": hashlib.sha256(plan.find_template(PREDICT_SINGLE)[0]).hexdigest(),
        }
        self._model = json.dumps(model, sort_keys=True).encode()

    def fit(
        self,
        signature: str,
        weights: Weights,
        data: DataTensors,
        labels: Labels,
        *,
        epochs: int,
        rng: np.random.Generator,
        hyper: Mapping[str, float] | None = None,
        slots: dict[str, Array] | None = None,
        augment: bool = True,
        final_loss: float = -math.inf,
        least_epochs: int = 1,
    ) -> tuple[Weights, float]:
        """Train for some epochs, or read the trained weights if the directory has them. See `Learner.fit`.

        Only the training of single models is read from the directory and written to it, and only if it starts
        from zero slots.

        Args:
            signature: name of a training signature of the plan.
            weights: at least the trained and the frozen weights of the signature.
            data: samples for each data tensor of the signature, such as `x`: shape (n, ...), float32.
            labels: labels, shape (n,), int64.
            epochs: maximum number of epochs.
            rng: draws the batches, the augmentation and the noise. It continues as after the training, even
                if there was none.
            hyper: hyperparameters by name. The plan's defaults are used for all others.
            slots: optimizer slots by name, see `Learner.fit`.
            augment: whether the plan's augmentation changes the samples.
            final_loss: mean loss of an epoch with which the training ends.
            least_epochs: it does not end before that for this many epochs.

        Returns:
            The trained weights without the frozen ones, and the mean loss of the last epoch.

        Raises:
            DataError: the data do not fit the signature, or there are no samples.
            DivergedError: the loss is not a finite number.
            PlanError: the weights do not fit the signature.
            WireError: the stored weights are damaged or belong to another plan.
        """

        def train() -> tuple[Weights, float]:
            return self._learner.fit(
                signature,
                weights,
                data,
                labels,
                epochs=epochs,
                rng=rng,
                hyper=hyper,
                slots=slots,
                augment=augment,
                final_loss=final_loss,
                least_epochs=least_epochs,
            )

        if signature != TRAIN_SINGLE or slots is not None:
            return train()
        key = self._hash_inputs(
            weights, data, labels, epochs, rng, hyper, augment, (final_loss, least_epochs)
        )
        files = self._directory / f"{key}.safetensors", self._directory / f"{key}.json"
        if files[1].exists():
            notes = json.loads(files[1].read_text())
            rng.bit_generator.state = notes["rng"]
            self.saved_s += notes["seconds"]
            specs = self.spec.find_signature(TRAIN_SINGLE).trained
            return decode_weights(files[0].read_bytes(), specs, str(files[0])), float(notes["loss"])
        began = time.process_time()
        model, loss = train()
        seconds = time.process_time() - began
        notes = {"rng": rng.bit_generator.state, "loss": loss, "seconds": seconds}
        write_atomic(files[0], encode_weights(model))
        write_atomic(files[1], json.dumps(notes).encode())
        return model, loss

    def predict(self, signature: str, weights: Weights, data: DataTensors) -> Array:
        """Return the signature's output for each sample. See `Learner.predict`.

        Args:
            signature: name of a predict signature of the plan.
            weights: at least the weights of the signature.
            data: samples for each data tensor of the signature, such as `x`: shape (n, ...), float32.

        Returns:
            The output, shape (n, ...), float32.

        Raises:
            DataError: the data do not fit the signature, or there are no samples.
            PlanError: the weights do not fit the signature.
        """
        return self._learner.predict(signature, weights, data)

    def _hash_inputs(
        self,
        weights: Weights,
        data: DataTensors,
        labels: Labels,
        epochs: int,
        rng: np.random.Generator,
        hyper: Mapping[str, float] | None,
        augment: bool,
        end: tuple[float, int],
    ) -> str:
        settings = {
            "epochs": epochs,
            "rng": rng.bit_generator.state,
            "hyper": dict(hyper or {}),
            "end": end,
        }
        if augment and self.spec.augmentation:
            settings["augmentation"] = dict(self.spec.augmentation)
        digest = hashlib.sha256(self._model + json.dumps(settings, sort_keys=True).encode())
        arrays: dict[str, NDArray[Any]] = {
            **weights,
            **{f"data {k}": v for k, v in data.items()},
            "labels": labels,
        }
        for name, array in sorted(arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()
