"""Signatures worked by hand in numpy: the loss and its gradient for a linear trunk under a softmax
classifier.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edgefl.program.plan.spec import SignatureSpec, TensorSpec

Named = Mapping[str, np.ndarray]
Slope = Callable[[Named, Named, Named, np.ndarray], tuple[dict[str, np.ndarray], np.ndarray]]
"""(weights, data with `y`, hyper, share[batch]) -> (gradient of sum(share * loss) by trained weight,
loss[batch]).
"""
Out = Callable[[Named, Named], np.ndarray]
"""(weights, data) -> what a predict signature gives."""

TRUNK = "trunk/kernel"
HEAD = ("head/kernel", "head/bias")


@dataclass(frozen=True)
class Sizes:
    """Width of a sample, of the features, number of classes and of samples in a batch."""

    inputs: int
    features: int
    classes: int
    batch: int

    @property
    def x(self) -> TensorSpec:
        """A batch of samples."""
        return TensorSpec("x", (self.batch, self.inputs))

    @property
    def trunk(self) -> tuple[TensorSpec, ...]:
        """The trunk's weights."""
        return (TensorSpec(TRUNK, (self.inputs, self.features)),)

    @property
    def head(self) -> tuple[TensorSpec, ...]:
        """The classifier's weights."""
        return (TensorSpec(HEAD[0], (self.features, self.classes)), TensorSpec(HEAD[1], (self.classes,)))


@dataclass(frozen=True)
class Rule:
    """A signature and what it computes."""

    signature: SignatureSpec
    slope: Slope | None = None
    out: Out | None = None


def trains(
    name: str,
    sizes: Sizes,
    data: tuple[TensorSpec, ...],
    weights: tuple[TensorSpec, ...],
    slope: Slope,
    frozen: tuple[TensorSpec, ...] = (),
    hyper: Mapping[str, float] | None = None,
) -> Rule:
    """Return a training rule; its optimizer is SGD with Keras's momentum, v <- m v - lr g, w <- w + v."""
    slots = tuple(TensorSpec(f"velocity/{w.name}", w.shape) for w in weights)
    every = {"learning_rate": 0.01, "momentum": 0.0} | dict(hyper or {})
    return Rule(
        SignatureSpec(
            name=name,
            kind="train",
            batch_size=sizes.batch,
            data=data,
            trained=weights,
            frozen=frozen,
            slots=slots,
            hyper=every,
        ),
        slope,
    )


def predicts(
    name: str,
    sizes: Sizes,
    data: tuple[TensorSpec, ...],
    frozen: tuple[TensorSpec, ...],
    out: Out,
    width: int = 0,
) -> Rule:
    """Return a prediction rule; `width` is that of its output, the number of classes if not given."""
    shape = (sizes.batch, width or sizes.classes)
    return Rule(
        SignatureSpec(
            name=name,
            kind="predict",
            batch_size=sizes.batch,
            data=data,
            frozen=frozen,
            out=TensorSpec("out", shape),
        ),
        out=out,
    )


def under(prefix: str, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return the specs with `prefix/` before each name."""
    return tuple(TensorSpec(f"{prefix}/{spec.name}", spec.shape) for spec in specs)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities along the last axis."""
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def sigmoid(z: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-z))."""
    return np.asarray(1 / (1 + np.exp(-z)))


def cross_entropy(logits: np.ndarray, y: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (d sum(share * loss) / d logits, loss[batch])."""
    rows = np.arange(len(y))
    p = softmax(logits)
    loss = -np.log(np.maximum(p[rows, y], 1e-30))
    p[rows, y] -= 1
    return p * share[:, None], loss


def classifier_slope(
    w: Named, data: Named, hyper: Named, share: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The slope of cross-entropy for logits = x @ trunk @ kernel + bias."""
    h = data["x"] @ w[TRUNK]
    d, loss = cross_entropy(h @ w[HEAD[0]] + w[HEAD[1]], data["y"], share)
    return {TRUNK: data["x"].T @ (d @ w[HEAD[0]].T), HEAD[0]: h.T @ d, HEAD[1]: d.sum(axis=0)}, loss


def classifier_out(w: Named, data: Named) -> np.ndarray:
    """Return the logits x @ trunk @ kernel + bias."""
    return np.asarray(data["x"] @ w[TRUNK] @ w[HEAD[0]] + w[HEAD[1]])


def classifier(sizes: Sizes) -> tuple[Rule, Rule, Rule]:
    """Return train, predict and, the same, predict_mixture."""
    weights = (*sizes.trunk, *sizes.head)
    return (
        trains("train", sizes, (sizes.x,), weights, classifier_slope),
        predicts("predict", sizes, (sizes.x,), weights, classifier_out),
        predicts("predict_mixture", sizes, (sizes.x,), weights, classifier_out),
    )
