"""Objectives: pure functions of which each becomes one signature of the program.

This module defines `Objective` and the objectives of the federated model. An algorithm uses these, or makes
an `Objective` of its own. For a gate, that takes a dozen lines.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import tensorflow as tf

from edgefl.base.errors import ConfigError, PlanError
from edgefl.base.tasks.scores import HUBER_DELTA
from edgefl.program.compiler.network import Network, collect_penalties
from edgefl.program.compiler.optimizer import Optimizer
from edgefl.program.plan.spec import SignatureSpec, TensorSpec, divide_batch

Tensor = Any
Tensors = Mapping[str, Tensor]
PREDICT_BATCH = 16  # With 64, the tensors of LeNet-5 alone take 7 MB more
GATE_BATCH = 64
LossPerSample = Callable[[Tensors, Tensors, Tensors], tuple[Tensor, dict[str, Tensor]]]


def _raise_no_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
    raise PlanError("an objective of kind train has no loss_per_sample, expected a function; set it")


def _raise_no_out(weights: Tensors, data: Tensors) -> Tensor:
    raise PlanError("an objective of kind predict has no out, expected a function; set it")


@dataclass(frozen=True)
class Objective:
    """A function that becomes one signature of the plan.

    Attributes:
        name: name of the signature.
        kind: `train` or `predict`.
        batch_size: number of samples of a training step or of a prediction. Data specs have it as their first
            axis, or the size of a micro-batch, see `split_batch`.
        data: specs of the data tensors, without the labels `y`.
        trained: specs of the weights that a training step changes.
        frozen: specs of the other weights. A call receives trained and frozen weights by name.
        noise: specs of the random tensors of a training step.
        assigned: names of the trained weights to which the forward pass assigns new values, such as moving
            statistics. The optimizer changes the other trained weights.
        initial: initial values, float32 arrays, of weights that are not part of the network. The plan's
            initial weights contain them too.
        optimizer: the optimizer of `train`.
        loss_per_sample: for `train`, maps (weights, data, noise) to the loss, float32[batch], and the new
            values of the assigned weights. Data include `y`, int32[batch], or as in `label`.
        out: for `predict`, maps (weights, data) to float32[batch, ...].
        export_out: a form of `out` with the same answers for the export template, if an op of `out` has no
            int8 form.
        label: spec of the labels `y` of a training step that does not train on classes.
    """

    name: str
    kind: Literal["train", "predict"]
    batch_size: int
    data: tuple[TensorSpec, ...]
    trained: tuple[TensorSpec, ...] = ()
    frozen: tuple[TensorSpec, ...] = ()
    noise: tuple[TensorSpec, ...] = ()
    assigned: tuple[str, ...] = ()
    initial: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Optimizer | None = None
    loss_per_sample: LossPerSample = _raise_no_loss
    out: Callable[[Tensors, Tensors], Tensor] = _raise_no_out
    export_out: Callable[[Tensors, Tensors], Tensor] | None = None
    label: TensorSpec | None = None

    @property
    def optimized(self) -> tuple[TensorSpec, ...]:
        """The trained weights that the optimizer changes."""
        return tuple(spec for spec in self.trained if spec.name not in self.assigned)

    @property
    def is_split(self) -> bool:
        """Whether a training step takes several calls, one for each micro-batch."""
        return self.data[0].shape[0] < self.batch_size


def make_signature(objective: Objective) -> SignatureSpec:
    """Return the plan's specification of an objective.

    Raises:
        PlanError: the objective has no optimizer or no `out`, or a layer cannot be traced.
    """
    o = objective
    if o.kind == "predict":
        shape = tuple(int(size) for size in _trace_out(o).shape)
        return SignatureSpec(
            name=o.name,
            kind=o.kind,
            batch_size=o.batch_size,
            data=o.data,
            frozen=o.frozen,
            out=TensorSpec("out", shape),
        )
    optimizer = _require_optimizer(o)
    return SignatureSpec(
        name=o.name,
        kind=o.kind,
        batch_size=o.batch_size,
        data=o.data,
        trained=o.trained,
        frozen=o.frozen,
        slots=optimizer.make_slots(o.optimized),
        noise=o.noise,
        hyper=dict(optimizer.hyper),
        label=o.label,
        gradients=o.optimized if o.is_split else (),
    )


def split_batch(objective: Objective, micro_batch: int) -> Objective:
    """Return an objective whose training step takes micro-batches one after the other.

    Gradients, and with them the step, are the same apart from rounding. Parts have equal sizes.

    Args:
        objective: the objective. Predictions and smaller batches are returned unchanged.
        micro_batch: maximum number of samples of a micro-batch. 0 returns the objective unchanged.

    Raises:
        ConfigError: samples of a batch depend on each other, because of a batch norm or of a dropout that
            drops the same values of all samples.
    """
    batch_size = objective.batch_size
    if objective.kind == "predict" or not 0 < micro_batch < batch_size:
        return objective
    if objective.assigned:
        raise ConfigError(
            f"[training] micro_batch is {micro_batch}, but the model has batch norms "
            f"({objective.assigned[0]}), expected norms of single samples, such as GroupNormalization: a "
            "smaller batch has other statistics; replace the batch norms, or lower batch_size, which is "
            f"{batch_size}, and leave micro_batch out"
        )
    if shared := [spec.name for spec in objective.noise if spec.shape[:1] != (batch_size,)]:
        raise ConfigError(
            f"[training] micro_batch is {micro_batch}, but {shared[0]} drops the same values of all samples "
            "of a batch, expected a noise_shape that starts with None; change it, or leave micro_batch out"
        )
    size = divide_batch(batch_size, micro_batch)

    def resize(spec: TensorSpec) -> TensorSpec:
        return replace(spec, shape=(size, *spec.shape[1:]))

    return replace(
        objective,
        data=tuple(map(resize, objective.data)),
        noise=tuple(map(resize, objective.noise)),
        label=resize(objective.label) if objective.label else None,
    )


def run_signature(objective: Objective, signature: SignatureSpec, args: Tensors) -> dict[str, Tensor]:
    """Return the results of one training step or one prediction. Call it while a graph is traced.

    Args:
        args: the tensors by their names in the program, see `list_arguments`.

    Returns:
        For `predict` the tensor `out`. For `train` the trained weights `t_0`, `t_1` and so on, the slots
        `s_0`, `s_1` and so on, the sums of gradients `g_0`, `g_1` and so on, and the `loss`.

    Raises:
        PlanError: the objective lacks a function, or a layer cannot be traced.
    """
    data = {spec.name: args[f"d_{spec.name}"] for spec in signature.data}
    weights = _name_tensors("f", signature.frozen, args) | _name_tensors("t", signature.trained, args)
    if objective.kind == "predict":
        return {"out": objective.out(weights, data)}
    with collect_penalties() as penalties:
        losses, assigned = objective.loss_per_sample(
            weights, data | {"y": args["d_y"]}, _name_tensors("n", signature.noise, args)
        )
    losses = sum(penalties, losses)
    share = args["d_sample_weight"]
    loss = tf.reduce_sum(losses * share)
    if not signature.gradients:
        loss /= tf.maximum(tf.reduce_sum(share), 1e-7)
    optimized = {spec.name: weights[spec.name] for spec in objective.optimized}
    gradients = tf.gradients(
        loss, list(optimized.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    hyper = {name: args[f"h_{name}"] for name in signature.hyper}
    for name, gradient in zip(optimized, gradients, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            raise PlanError(
                f"the weight {name} is a table whose rows a layer looks up, and TFLite has no gradient "
                "of that; freeze the layer with trainable=False, or use Dense on one-hot samples"
            )
    sums = dict(zip(optimized, gradients, strict=True))
    for name, earlier in _name_tensors("g", signature.gradients, args).items():
        sums[name] += earlier
    new, slots = _require_optimizer(objective).update(
        optimized,
        sums,
        _name_tensors("s", signature.slots, args),
        hyper,
    )
    new |= {name: assigned.get(name, weights[name]) for name in objective.assigned}
    results = {f"t_{i}": new[spec.name] for i, spec in enumerate(signature.trained)}
    results |= {f"g_{i}": sums[spec.name] for i, spec in enumerate(signature.gradients)}
    return results | {f"s_{i}": slots[spec.name] for i, spec in enumerate(signature.slots)} | {"loss": loss}


def compile_signature(run: Callable[..., dict[str, Tensor]], signature: SignatureSpec) -> Any:
    """Return a function of the arguments of a signature as a concrete function of TensorFlow.

    Args:
        run: the function, such as `run_signature`.
        signature: the signature, whose arguments have the names of `list_arguments`.
    """
    specs = {
        name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in list_arguments(signature).items()
    }
    return tf.function(run, autograph=False).get_concrete_function(**specs)


def list_arguments(signature: SignatureSpec) -> dict[str, TensorSpec]:
    """Return the arguments of a signature: the spec by the name in the program.

    Args:
        signature: the signature. The prefixes of the names are d for data, t for trained weights, f for
            frozen weights, s for slots, n for noise, g for sums of gradients and h for hyper-parameters.
    """
    specs_by_name = {f"d_{spec.name}": spec for spec in signature.data}
    if signature.kind == "train":
        specs_by_name["d_y"] = signature.label or TensorSpec("y", (signature.call_size,), "int32")
        specs_by_name["d_sample_weight"] = TensorSpec("sample_weight", (signature.call_size,))
    for letter, specs in (
        ("t", signature.trained),
        ("f", signature.frozen),
        ("s", signature.slots),
        ("n", signature.noise),
        ("g", signature.gradients),
    ):
        specs_by_name |= {f"{letter}_{i}": spec for i, spec in enumerate(specs)}
    return specs_by_name | {f"h_{name}": TensorSpec(name, ()) for name in signature.hyper}


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each sample.

    Args:
        logits: float32[batch, classes].
        y: the labels, int32[batch].

    Returns:
        float32[batch].
    """
    return -tf.reduce_sum(tf.one_hot(y, int(logits.shape[-1])) * tf.nn.log_softmax(logits), axis=-1)


def measure_loss_per_sample(network: Network, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each sample for the task of a network.

    Args:
        outputs: outputs of the model, float32[batch, outputs]. For a classification these are logits.
        y: the labels, int32[batch], or float32[batch, outputs] for another task.

    Returns:
        float32[batch]. The losses of other tasks are the mean over the outputs, as in
        `edgefl.base.tasks.scores.measure_sample_losses`.
    """
    if network.task.is_classification:
        return cross_entropy(outputs, y)
    errors = outputs - y
    if network.task.loss_name == "mse":
        return tf.reduce_mean(tf.square(errors), axis=-1)
    if network.task.loss_name == "mae":
        return tf.reduce_mean(tf.abs(errors), axis=-1)
    quadratic = tf.minimum(tf.abs(errors), HUBER_DELTA)
    return tf.reduce_mean(0.5 * tf.square(quadratic) + HUBER_DELTA * (tf.abs(errors) - quadratic), axis=-1)


def make_label_spec(network: Network, batch_size: int) -> TensorSpec | None:
    """Return the spec of the labels of a training step. None for a classification.

    Args:
        network: the model with its task.
    """
    if network.task.is_classification:
        return None
    return TensorSpec("y", (batch_size, network.num_classes))


def make_input_spec(network: Network, batch_size: int) -> TensorSpec:
    """Return the spec of the data tensor `x`, a batch of inputs of the model."""
    return TensorSpec("x", (batch_size, *network.input_shape))


def make_features_spec(network: Network, batch_size: int) -> TensorSpec:
    """Return the spec of the data tensor `features`, a batch of outputs of the trunk."""
    return TensorSpec("features", (batch_size, *network.features_shape))


def classify(network: Network, batch_size: int, optimizer: Optimizer, name: str = "train") -> Objective:
    """Return an objective that trains the whole model on the loss of its task, such as cross-entropy.

    Args:
        name: name of the signature.
    """

    def measure_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        logits, updates = network.apply(weights, data["x"], training=True, noise=noise)
        return measure_loss_per_sample(network, logits, data["y"]), updates

    trained = network.select((*network.trainable, *network.statistics))
    frozen = tuple(spec for spec in network.specs if spec not in trained)
    return Objective(
        name=name,
        kind="train",
        batch_size=batch_size,
        data=(make_input_spec(network, batch_size),),
        trained=trained,
        frozen=frozen,
        noise=network.list_noise(batch_size),
        assigned=network.statistics,
        optimizer=optimizer,
        loss_per_sample=measure_loss,
        label=make_label_spec(network, batch_size),
    )


def predict_logits(network: Network, batch_size: int, name: str = "predict") -> Objective:
    """Return an objective that predicts the logits of the whole model, float32[batch, classes].

    Args:
        name: name of the signature.
    """
    return Objective(
        name=name,
        kind="predict",
        batch_size=batch_size,
        data=(make_input_spec(network, batch_size),),
        frozen=network.specs,
        out=lambda weights, data: network.apply(weights, data["x"])[0],
    )


def extract_features(network: Network, batch_size: int, name: str = "features") -> Objective:
    """Return an objective that computes the features of the trunk, float32[batch, *features_shape].

    Args:
        name: name of the signature.
    """
    return Objective(
        name=name,
        kind="predict",
        batch_size=batch_size,
        data=(make_input_spec(network, batch_size),),
        frozen=network.select(network.trunk_names),
        out=lambda weights, data: network.apply_trunk(weights, data["x"]),
    )


def train_head(
    network: Network, batch_size: int, optimizer: Optimizer, name: str = "train_head"
) -> Objective:
    """Return an objective that trains only the head, on features that the trunk computed before.

    Args:
        name: name of the signature.

    Raises:
        PlanError: the model has no head, or all weights of the head are frozen.
    """

    def measure_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = network.apply_head(weights, data["features"], training=True, noise=noise)
        return measure_loss_per_sample(network, outputs, data["y"]), {}

    if not network.head_names:
        raise PlanError(
            f"{name} trains the last dense layers, but the model ends with another layer; end the model with "
            "Dense, or use an algorithm such as fedavg"
        )
    head = network.select(network.head_names)
    trained = tuple(spec for spec in head if spec.name in network.trainable)
    if not trained:
        raise PlanError(
            f"{name} trains the last dense layers, but {', '.join(network.head_names)} are frozen, expected "
            "a trained layer; set trainable=True on it, or use an algorithm such as fedavg"
        )
    frozen = tuple(spec for spec in head if spec.name not in network.trainable)
    return Objective(
        name=name,
        kind="train",
        batch_size=batch_size,
        data=(make_features_spec(network, batch_size),),
        trained=trained,
        frozen=frozen,
        noise=network.list_head_noise(batch_size),
        optimizer=optimizer,
        loss_per_sample=measure_loss,
        label=make_label_spec(network, batch_size),
    )


def train_head_on_samples(
    network: Network, batch_size: int, optimizer: Optimizer, name: str = "train_head"
) -> Objective:
    """Return an objective that trains only the head, and computes the features of its samples in each step.

    It is for samples that change from step to step. The trunk is frozen and runs in inference mode. On the
    same samples, a step gives the same head as a step of `train_head` on their features.

    Args:
        name: name of the signature.

    Raises:
        PlanError: the model has no head.
    """
    head = train_head(network, batch_size, optimizer, name)

    def measure_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        features = network.apply_trunk(weights, data["x"])
        return head.loss_per_sample(weights, {**data, "features": features}, noise)

    return replace(
        head,
        data=(make_input_spec(network, batch_size),),
        frozen=(*head.frozen, *network.select(network.trunk_names)),
        loss_per_sample=measure_loss,
    )


def predict_head(network: Network, batch_size: int, name: str = "predict_head") -> Objective:
    """Return an objective that predicts the logits of the head from features, float32[batch, classes].

    Args:
        name: name of the signature.
    """
    return Objective(
        name=name,
        kind="predict",
        batch_size=batch_size,
        data=(make_features_spec(network, batch_size),),
        frozen=network.select(network.head_names),
        out=lambda weights, data: network.apply_head(weights, data["features"]),
    )


def _require_optimizer(objective: Objective) -> Optimizer:
    if objective.optimizer is None:
        raise PlanError(
            f"the objective {objective.name} has the kind train and no optimizer; set an optimizer, such as "
            "sgd()"
        )
    return objective.optimizer


def _name_tensors(letter: str, specs: tuple[TensorSpec, ...], args: Tensors) -> dict[str, Tensor]:
    return {spec.name: args[f"{letter}_{i}"] for i, spec in enumerate(specs)}


def _trace_out(objective: Objective) -> Tensor:
    with tf.Graph().as_default():
        placeholder = tf.compat.v1.placeholder
        weights = {
            spec.name: placeholder(spec.dtype, spec.shape) for spec in (*objective.frozen, *objective.trained)
        }
        return objective.out(
            weights, {spec.name: placeholder(spec.dtype, spec.shape) for spec in objective.data}
        )
