"""A learner in numpy alone: a linear trunk under a softmax classifier. For fast tests of algorithms, not for devices.

It answers to the same signatures as a compiled plan of the PFL family: train, predict, features, train_head,
predict_head, train_gate, predict_mixture; every optimizer is SGD with Keras's momentum, v <- m v - lr g, w <- w + v.
"""

from collections.abc import Mapping

import numpy as np

from edgefl.learner.loop import StepLearner
from edgefl.plan.spec import PlanSpec, Signature, TensorSpec

TRUNK = "trunk/kernel"
HEAD = ("head/kernel", "head/bias")
GATE = ("gate/kernel", "gate/bias")


def softmax_spec(algorithm: str, *, inputs: int, features: int, classes: int, batch_size: int = 8) -> PlanSpec:
    """Return the spec of h = x @ trunk, logits = h @ kernel + bias, with the algorithm's mixture."""
    b, kind = batch_size, algorithm.removeprefix("pfl-")
    x, h = TensorSpec("x", (b, inputs)), TensorSpec("features", (b, features))
    trunk = (TensorSpec(TRUNK, (inputs, features)),)
    head = (TensorSpec(HEAD[0], (features, classes)), TensorSpec(HEAD[1], (classes,)))
    width = features if kind == "mfe" else inputs
    gate = (TensorSpec(GATE[0], (width, 1)), TensorSpec(GATE[1], (1,)))

    def under(prefix: str) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(f"{prefix}/{spec.name}", spec.shape) for spec in head)

    mixtures = {"fedavg": (*trunk, *head), "fb": (*trunk, *under("local"))}
    mixture = mixtures.get(kind, (*trunk, *under("global"), *under("local"), *gate))
    out, hyper = TensorSpec("out", (b, classes)), {"learning_rate": 0.01, "momentum": 0.0}

    def trains(name: str, data: tuple[TensorSpec, ...], weights: tuple[TensorSpec, ...]) -> Signature:
        slots = tuple(TensorSpec(f"velocity/{w.name}", w.shape) for w in weights)
        return Signature(name, "train", b, data, trained=weights, slots=slots, hyper=hyper)

    signatures = (
        trains("train", (x,), (*trunk, *head)),
        Signature("predict", "predict", b, (x,), frozen=(*trunk, *head), out=out),
        Signature("features", "predict", b, (x,), frozen=trunk, out=TensorSpec("out", h.shape)),
        trains("train_head", (h,), head),
        Signature("predict_head", "predict", b, (h,), frozen=head, out=out),
        trains("train_gate", (TensorSpec("gate_input", (b, width)), TensorSpec("logits", (b, 2, classes))), gate),
        Signature("predict_mixture", "predict", b, (x,), frozen=mixture, out=out),
    )
    return PlanSpec("softmax", algorithm, {}, (inputs,), classes, (*trunk, *head), signatures)


def _softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-z)))


class SoftmaxLearner(StepLearner):
    """Runs a `softmax_spec`; see `Learner`."""

    name = "numpy"

    def __init__(self, spec: PlanSpec) -> None:
        self.spec = spec

    def _gradients(self, name: str, args: Mapping[str, np.ndarray], w: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the summed gradients of the weighted cross-entropy, and the loss of each sample."""
        y, weight = args["d_y"], args["d_sample_weight"]
        rows = np.arange(len(y))
        if name == "train_gate":
            z, logits = args["d_gate_input"], args["d_logits"]
            g = _sigmoid(z @ w[0] + w[1])
            p = _softmax(g * logits[:, 0] + (1 - g) * logits[:, 1])
        else:
            h = args["d_x"] @ w[0] if name == "train" else args["d_features"]
            p = _softmax(h @ w[-2] + w[-1])
        loss = -np.log(np.maximum(p[rows, y], 1e-30))
        slope = p.copy()
        slope[rows, y] -= 1
        slope *= weight[:, None]
        if name == "train_gate":
            dz = (slope * (logits[:, 0] - logits[:, 1])).sum(axis=1, keepdims=True) * g * (1 - g)
            return [z.T @ dz, dz.sum(axis=0)], loss
        gradients = [h.T @ slope, slope.sum(axis=0)]
        return ([args["d_x"].T @ (slope @ w[1].T), *gradients] if name == "train" else gradients), loss

    def _train(self, signature: Signature, args: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        w = [args[f"t_{i}"] for i in range(len(signature.trained))]
        gradients, loss = self._gradients(signature.name, args, w)
        count = max(float(args["d_sample_weight"].sum()), 1.0)
        out: dict[str, np.ndarray] = {"loss": np.asarray((loss * args["d_sample_weight"]).sum() / count, np.float32)}
        for i, gradient in enumerate(gradients):
            velocity = args["h_momentum"] * args[f"s_{i}"] - args["h_learning_rate"] * gradient / count
            out[f"s_{i}"] = velocity.astype(np.float32)
            out[f"t_{i}"] = (w[i] + velocity).astype(np.float32)
        return out

    def _predict(self, signature: Signature, args: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        w = [args[f"f_{i}"] for i in range(len(signature.frozen))]
        if signature.name == "features":
            return {"out": args["d_x"] @ w[0]}
        if signature.name == "predict_head":
            return {"out": args["d_features"] @ w[0] + w[1]}
        x = args["d_x"]
        h = x @ w[0]
        first = h @ w[1] + w[2]
        if len(w) == 3:
            return {"out": first}
        g = _sigmoid((h if w[5].shape[0] == h.shape[1] else x) @ w[5] + w[6])
        return {"out": g * first + (1 - g) * (h @ w[3] + w[4])}

    def step(self, signature: str, arguments: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the signature once; see `StepLearner.step`."""
        spec = self.spec.signature(signature)
        if spec.kind == "predict":
            return self._predict(spec, arguments)
        with np.errstate(over="ignore", invalid="ignore"):  # the loop reports a loss that is not finite
            return self._train(spec, arguments)
