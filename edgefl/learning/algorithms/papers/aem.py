"""Adaptive Expert Models (AEM): clients explore cluster models and mix them with a local model by a gate.

In IFCA, a client takes the model with the lowest loss. In AEM, it does so with probability 1 - epsilon. With
probability epsilon, it takes one of the J models at random. Optionally, a model that has stopped improving
can no longer be selected. Only clients that chose a model by its loss count for that.

After the rounds, each client trains a local model and then a gate, both with AdamW. The gate is a softmax
over J + 1 models:

    p(y|x) = sum_j g_j(x) p_j(y|x) + g_l(x) p_l(y|x)

Its loss is -log p(y|x). The gate never sees the weights of an expert. The probability that each expert gives
to the correct label is data of `train_gate`. It is called `likelihood`, has the shape (batch, J + 1),
float32, and is computed once for each client. The loss of a sample is then -log sum_j g_j(x) likelihood_j.

Communication cost: as in IFCA, but only the selectable models are sent down. With early stopping, a client
that did not explore sends one more number up, the chosen model's loss on its validation samples. At the end,
all J models are sent down, and the initial weights of the local model and of a gate that has any.

Source: Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022, algorithms 1
to 4 and equation 5.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.types import (
    Array,
    Broadcast,
    ClientState,
    Mixture,
    Peer,
    ServerState,
    Shard,
    StateRecord,
    Update,
    Weights,
)
from edgefl.learning.algorithms.base import PHASE_FEDERATE, PHASE_PERSONALIZE, Algorithm
from edgefl.learning.algorithms.draws import drop_draws
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.mixtures.gate import split_gate_samples
from edgefl.learning.algorithms.model_choice import (
    MAX_HELD_OUT_SHARE,
    ModelChoiceOptions,
    find_lowest_loss,
    make_model_choice,
    split_validation_rows,
)
from edgefl.learning.algorithms.names import (
    EXPERT_PREFIX,
    FEDERATED_MODEL,
    name_expert,
    prefix_specs,
    select_experts,
    strip_prefix,
    with_prefix,
)
from edgefl.learning.algorithms.options import check_range, limit_experts
from edgefl.learning.algorithms.papers.fedavg import build_fedavg_objectives
from edgefl.program.learner.base import Learner, evaluate, predict_label_log_p
from edgefl.program.plan.spec import TensorSpec

if TYPE_CHECKING:
    from edgefl.program.compiler.network import Network
    from edgefl.program.compiler.objective import Objective

Tensor = Any
Tensors = Mapping[str, Tensor]

LOCAL_PART = "local"
"""The local expert, and its initial weights in a state."""
LOCAL_EXPERT = "local_expert"
"""The peer of a mixture that is the local expert, trained on all of the client's samples."""
GATE_PART = "gate"
LOG_EPSILON = 1e-7
_GATE_MODELS = {"cnn": "gate-cnn"}
VALIDATION_LOSS = "validation_loss"


def explore_models(
    received: Mapping[int, Weights], epsilon: float, rng: np.random.Generator
) -> dict[int, Weights]:
    """Return one random model with probability epsilon, and otherwise all models to choose from.

    With epsilon 0 nothing is drawn.

    Args:
        received: the received models by index.
        epsilon: probability of exploring, from 0 to 1.
        rng: draws whether to explore, and the model.
    """
    if epsilon and received and rng.random() < epsilon:
        index = list(received)[int(rng.integers(len(received)))]
        return {index: received[index]}
    return dict(received)


@dataclass(frozen=True)
class LowestLosses(StateRecord):
    """The validation losses so far, and how long each model waits for lower losses.

    Attributes:
        by_model: each client's lowest validation loss by client id, by the model's index.
        waited: number of rounds since at least half of the votes were for the model, by the model's index.
    """

    by_model: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    waited: Mapping[int, int] = field(default_factory=dict)


def track_lowest_losses(before: LowestLosses, losses: Mapping[int, Mapping[str, float]]) -> LowestLosses:
    """Return each client's lowest validation loss of each model, and each waiting time, after a round.

    A client that validated the model in an earlier round has a vote: whether the loss is below its own lowest
    loss of the model. The waiting time is the number of rounds since at least half of the votes were for the
    model. A round without votes does not count. So a client that reports false losses has one vote, and stops
    no model on which as many other clients improve.

    Args:
        before: the losses before the round.
        losses: validation losses in the round, as `losses[model][client_id]`.
    """
    by_model = dict(before.by_model)
    waited = dict(before.waited)
    for index, reported in losses.items():
        lowest = by_model.get(index, {})
        votes = [loss < lowest[client_id] for client_id, loss in reported.items() if client_id in lowest]
        by_model[index] = {
            **lowest,
            **{client_id: min(loss, lowest.get(client_id, loss)) for client_id, loss in reported.items()},
        }
        if votes:
            waited[index] = 0 if 2 * sum(votes) >= len(votes) else waited.get(index, 0) + 1
    return LowestLosses(by_model, waited)


def list_active_models(state: ServerState, patience: int) -> dict[int, Weights]:
    """Return the cluster models that are still trained, by index.

    Args:
        patience: number of rounds without a lower validation loss after which a model stops. With 0 no model
            stops.
    """
    waited = state.read_record(LowestLosses).waited
    return {
        index: model
        for index, model in select_experts(state.models).items()
        if not patience or waited.get(index, 0) < patience
    }


@dataclass(frozen=True)
class AemOptions(ModelChoiceOptions):
    """Options of IFCA, and of exploration, the local model and the gate.

    The defaults were chosen on the federations of `edgefl reproduce outcomes`. They are not the paper's
    values for CIFAR-10. The paper trains the gate on the samples that the local model has memorized. A step
    size of 3e-6 over 200 epochs leaves that gate almost at its initial weights. A gate that learns on these
    samples trusts only the local model and loses with IID data.

    Raises:
        ConfigError: a share or a probability is out of range. Or patience or gate_unseen is set, but
            validation_share is 0.

    Attributes:
        validation_share: share of a client's training samples that never train a cluster model. They are used
            for patience, for gate_unseen, and for the choice of the best model at the end. 0: that choice
            uses training samples.
        epsilon: probability of a random model. 0: IFCA.
        patience: rounds without a lower validation loss for half of the clients that chose a model, after
            which the model stops. The federation ends when all models have stopped. 0: no model stops.
        local_model: name of another architecture for the local model. Empty: the federated architecture.
        local_options: options of local_model.
        local_epochs: epochs of the local model.
        local_learning_rate: step size of the local model's AdamW.
        local_weight_decay: weight decay of the local model's AdamW.
        gate: pixels (linear), features (linear, on the mean of the experts' features), cnn (the paper's gate,
            the model gate-cnn) or a model's name.
        gate_options: options of the gate's model.
        gate_epochs: epochs of the gate's training.
        gate_learning_rate: step size of the gate's AdamW.
        gate_weight_decay: weight decay of the gate's AdamW.
        gate_share: share of the training samples that train the gate instead of the local model. 0: both
            train on all samples.
        gate_unseen: whether the gate trains on the validation samples, instead of gate_share.
        baselines: whether to also measure the best cluster model after fine-tuning like the local model. If
            it is not set and [personalization] select is true, it is off. A client then trains and measures a
            fine-tuned model anyway.
    """

    epsilon: float = 0.33
    patience: int = 0
    local_model: str = ""
    local_options: Mapping[str, Any] = field(default_factory=dict)
    local_epochs: int = 50
    local_learning_rate: float = 1e-3
    local_weight_decay: float = 9.89e-3
    gate: str = "pixels"
    gate_options: Mapping[str, Any] = field(default_factory=dict)
    gate_epochs: int = 40
    gate_learning_rate: float = 1e-3
    gate_weight_decay: float = 6.88e-4
    gate_share: float = 0.25
    gate_unseen: bool = False
    baselines: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("epsilon", self.epsilon)
        check_range("gate_share", self.gate_share, MAX_HELD_OUT_SHARE)
        for name, is_on in (("patience", bool(self.patience)), ("gate_unseen", self.gate_unseen)):
            if is_on and not self.validation_share:
                raise ConfigError(
                    f"[algorithm] {name} needs samples to validate on; set validation_share above 0, such "
                    "as 0.1"
                )


def resolve_aem_options(options: AemOptions, config: FederationConfig) -> AemOptions:
    """Return the options with at most one model for each expected client, and with the baselines to measure.

    Options that the configuration sets are not changed.

    Args:
        config: the configuration, which sets the expected clients and whether clients select a model.
    """
    measure = options.baselines if "baselines" in config.options else not config.personalization.select
    return replace(options, num_experts=limit_experts(options.num_experts, config), baselines=measure)


def aem(learner: Learner | None, options: AemOptions) -> Algorithm:
    """Return AEM on top of IFCA.

    The peer `local_expert` of a mixture trains on all of the client's samples.

    Args:
        learner: runs the plan. The aggregator passes None.

    Source: Isaksson et al., 2022, algorithms 1 to 4.
    """
    base = make_model_choice(learner, options)
    local_hyper = {"learning_rate": options.local_learning_rate, "weight_decay": options.local_weight_decay}
    gate_hyper = {"learning_rate": options.gate_learning_rate, "weight_decay": options.gate_weight_decay}

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        cluster_weights = {
            name: array
            for name, array in weights.items()
            if not name.startswith((f"{LOCAL_PART}/", f"{GATE_PART}/"))
        }
        state = base.init(cluster_weights, rng)
        starts = {
            part: {n: a for n, a in weights.items() if n.startswith(f"{part}/")}
            for part in (LOCAL_PART, GATE_PART)
        }
        present = {part: start for part, start in starts.items() if start}
        return replace(state, models={**state.models, LOCAL_PART: drop_draws(cluster_weights), **present})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        if state.phase == PHASE_PERSONALIZE:
            return Broadcast(round=state.round, phase=state.phase, models=state.models)
        models = {
            name_expert(index): model for index, model in list_active_models(state, options.patience).items()
        }
        return Broadcast(round=state.round, phase=state.phase, models=models)

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        received = select_experts(broadcast.models)
        offered = explore_models(received, options.epsilon, rng)
        sent = replace(broadcast, models={name_expert(index): model for index, model in offered.items()})
        update, state = base.local_update(sent, state, shard, client_id, rng)
        _, held_out = split_validation_rows(shard, options.validation_share)
        explored = len(offered) < len(received)
        if not options.patience or explored or not len(held_out):
            return update, state
        chosen = received[int(update.metrics[EXPERT_PREFIX])]
        loss = evaluate(learner, "predict", chosen, shard.x_train[held_out], shard.y_train[held_out]).loss
        return replace(update, metrics={**update.metrics, VALIDATION_LOSS: loss}), state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        if state.phase != PHASE_FEDERATE:  # all models have stopped, so a round changes nothing
            return replace(state, round=state.round + 1)
        losses: dict[int, dict[str, float]] = {}

        def record_losses() -> Iterator[Update]:
            for update in updates:
                loss = update.metrics.get(VALIDATION_LOSS, np.nan)
                for index in select_experts(update.deltas) if options.patience and np.isfinite(loss) else ():
                    losses.setdefault(index, {})[update.client_id] = loss
                yield update

        after = base.aggregate(state, record_losses())
        after = after.with_record(track_lowest_losses(after.read_record(LowestLosses), losses))
        return (
            after if list_active_models(after, options.patience) else replace(after, phase=PHASE_PERSONALIZE)
        )

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        received = select_experts(broadcast.models)
        x = shard.x_train
        y = shard.y_train
        all_rows = np.arange(len(y))
        train, held_out = split_validation_rows(shard, options.validation_share)
        if options.gate_unseen and len(held_out):
            local_rows = train
            gate_rows = held_out
        else:
            local_rows, gate_rows = (
                split_gate_samples(y, options.gate_share, rng, shard.group_train)
                if options.gate_share
                else (all_rows, all_rows)
            )
        selection_rows = held_out if len(held_out) else all_rows
        log_p = {
            index: predict_label_log_p(learner, "predict", model, x, y) for index, model in received.items()
        }
        best = find_lowest_loss(
            {index: -float(values[selection_rows].mean()) for index, values in log_p.items()}
        )

        def fit(signature: str, weights: Weights, rows: np.ndarray) -> Weights:
            trained = learner.fit(
                signature,
                weights,
                {"x": x[rows]},
                y[rows],
                epochs=options.local_epochs,
                rng=rng,
                hyper=local_hyper,
            )[0]
            return {**weights, **trained}

        first = {
            name.removeprefix(f"{LOCAL_PART}/"): array for name, array in broadcast.models[LOCAL_PART].items()
        }
        local = fit("train_local", first, local_rows)
        predict_local = "predict_local" if options.local_model else "predict"
        local_log_p = predict_label_log_p(learner, predict_local, local, x[gate_rows], y[gate_rows])
        likelihood = np.exp(
            np.stack([*(values[gate_rows] for values in log_p.values()), local_log_p], axis=1)
        ).astype(np.float32)
        features = options.gate == "features"
        gate_inputs = {"features": _average_features(learner, received, x)} if features else {"x": x}
        start = {
            spec.name: np.zeros(spec.shape, np.float32)
            for spec in learner.spec.find_signature("predict_gate").frozen
        }
        data = {**{name: array[gate_rows] for name, array in gate_inputs.items()}, "likelihood": likelihood}
        initial_gate = {**start, **broadcast.models.get(GATE_PART, {})}
        trained = {
            **initial_gate,
            **learner.fit(
                "train_gate",
                initial_gate,
                data,
                y[gate_rows],
                epochs=options.gate_epochs,
                rng=rng,
                hyper=gate_hyper,
                augment=False,  # the likelihoods belong to the samples as they are
            )[0],
        }
        weights = learner.predict("predict_gate", trained, gate_inputs)

        parts = {name_expert(index): model for index, model in received.items()} | {LOCAL_PART: local}
        frozen = {
            name: array for part, model in parts.items() for name, array in with_prefix(part, model).items()
        }
        full_local = fit("train_local", first, all_rows) if len(local_rows) < len(all_rows) else local
        peers = {
            FEDERATED_MODEL: Peer("predict", received[best]),
            LOCAL_EXPERT: Peer(predict_local, full_local),
            "ensemble": Peer("predict_mixture", {**frozen, **start}),  # a gate of zeros gives equal weights
        }
        if options.baselines:
            peers["tuned"] = Peer(
                "predict",
                fit("train_tuned" if options.local_model else "train_local", received[best], all_rows),
            )
        usage = {
            f"{GATE_PART}/{part}": float(mean) for part, mean in zip(parts, weights.mean(axis=0), strict=True)
        }
        used = len(np.unique(weights.argmax(axis=1)))
        mixed = {**frozen, **(scale_gate_for_sum(trained, len(received)) if features else trained)}
        return Mixture(
            weights=mixed,
            peers=peers,
            diagnostics={"best": float(best), "experts_used": float(used), **usage},
        ), state

    return replace(
        base,
        name="aem",
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        by_sums=not options.patience,  # with patience, validation losses decide which models are sent
    )


def _average_features(learner: Learner, received: Mapping[int, Weights], x: np.ndarray) -> np.ndarray:
    total = sum(learner.predict("features", model, {"x": x}) for model in received.values())
    return np.asarray(total / np.float32(len(received)), np.float32)


@dataclass(frozen=True)
class Gate:
    """The weights of a gate and the function that computes its logits.

    Attributes:
        input_name: name of the data tensor that is the gate's input.
        shape: shape of one sample of this tensor.
        specs: the weights of the gate.
        apply: maps (weights, input, training, noise) to the logits, shape (batch, experts), float32, and to
            the values that a training pass assigns.
        noise: returns the noise tensors of a training pass for a batch size.
        statistics: names of the weights that a training pass assigns.
        initial: initial weights, empty for zeros.
    """

    input_name: str
    shape: tuple[int, ...]
    specs: tuple[TensorSpec, ...]
    apply: Callable[[Tensors, Tensor, bool, Tensors | None], tuple[Tensor, dict[str, Tensor]]]
    noise: Callable[[int], tuple[TensorSpec, ...]] = lambda batch_size: ()
    statistics: tuple[str, ...] = ()
    initial: Mapping[str, Any] = field(default_factory=dict)


def build_aem_objectives(network: "Network", options: AemOptions) -> tuple["Objective", ...]:
    """Return the objectives of IFCA, the local model, the gate and the mixture.

    Args:
        network: the model of the clusters.

    Raises:
        ConfigError: the gate or the local model does not exist, gate_options is set for a linear gate, or a
            layer of the network is called `local` or `gate`.
        PlanError: the gate or the local model is a model that no plan can contain, see `Network`.

    Source: Isaksson et al., 2022, algorithms 1 to 4 and equation 5.
    """
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.optimizer import adamw

    clashes = sorted({spec.name.split("/")[0] for spec in network.specs} & {LOCAL_PART, GATE_PART})
    if clashes:
        raise ConfigError(
            f"a layer of the model is named {clashes[0]!r}, which is the name of a part of the mixture; give "
            "the layer another name"
        )
    train, predict, _ = build_fedavg_objectives(network, options)
    batch = options.batch_size
    optimizer = adamw(options.local_learning_rate, weight_decay=options.local_weight_decay)
    other = (
        _build_network(network, options.local_model, network.num_classes, options.local_options)
        if options.local_model
        else None
    )
    local = other or network
    gate = make_gate(network, options)
    objectives = [train, predict, of.classify(local, batch, optimizer, "train_local")]
    if other is not None:
        start = {f"{LOCAL_PART}/{name}": array for name, array in other.read_weights().items()}
        objectives[-1:] = [
            replace(objectives[-1], initial=start),
            of.predict_logits(other, of.PREDICT_BATCH, "predict_local"),
        ]
        if options.baselines:
            objectives.append(of.classify(network, batch, optimizer, "train_tuned"))
    if gate.input_name == "features":
        objectives.append(of.extract_features(network, of.PREDICT_BATCH))
    return (
        *objectives,
        _build_gate_training(gate, batch, options),
        _build_gate_prediction(gate),
        _build_mixture_prediction(network, local, gate, options.num_experts),
    )


def make_gate(network: "Network", options: AemOptions) -> Gate:
    """Return the gate that the options select, over num_experts cluster models and the local model.

    Args:
        network: the model of the clusters. A linear gate reads its input or its features.

    Raises:
        ConfigError: the gate does not exist, or gate_options is set for a linear gate.
        PlanError: the gate is a model that no plan can contain, see `Network`.
    """
    kind = options.gate
    count = options.num_experts + 1
    if kind not in ("pixels", "features"):
        return _make_network_gate(
            _build_network(network, _GATE_MODELS.get(kind, kind), count, options.gate_options)
        )
    if options.gate_options:
        raise ConfigError(
            f"[algorithm] the gate {kind!r} has no options, received {', '.join(options.gate_options)}; "
            "remove them"
        )
    shape = network.input_shape if kind == "pixels" else network.features_shape
    kernel = TensorSpec(f"{GATE_PART}/kernel", (math.prod(shape), count))
    bias = TensorSpec(f"{GATE_PART}/bias", (count,))

    def apply_linear(
        weights: Tensors, seen: Tensor, training: bool, noise: Tensors | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        seen = network.normalize_input(seen) if kind == "pixels" else seen
        flat = tf.reshape(seen, (seen.shape[0], math.prod(shape)))
        return tf.matmul(flat, weights[kernel.name]) + weights[bias.name], {}

    return Gate(
        input_name="x" if kind == "pixels" else "features",
        shape=shape,
        specs=(kernel, bias),
        apply=apply_linear,
    )


def scale_gate_for_sum(gate: Weights, num_experts: int) -> dict[str, Array]:
    """Return a gate on the sum of the experts' features, equal to this gate on their mean.

    The mixture only adds the features. The converter would fold a division into the kernel, and a device
    could not insert its own kernel there.
    """
    kernel = f"{GATE_PART}/kernel"
    return {**gate, kernel: np.asarray(gate[kernel] / np.float32(num_experts), np.float32)}


def _build_network(network: "Network", name: str, num_classes: int, options: Mapping[str, Any]) -> "Network":
    from edgefl.base.config import ModelConfig
    from edgefl.program.compiler.network import Network
    from edgefl.program.models import build_model
    from edgefl.program.models.input_normalization import read_constants

    mean, std = read_constants(network.input_normalization)
    return Network(
        build_model(
            ModelConfig(
                name=name,
                input_shape=network.input_shape,
                num_classes=num_classes,
                options=options,
                mean=mean,
                std=std,
            )
        )
    )


def _make_network_gate(network: "Network") -> Gate:

    def apply_network(
        weights: Tensors, seen: Tensor, training: bool, noise: Tensors | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        outputs, updates = network.apply(
            strip_prefix(GATE_PART, weights), seen, training=training, noise=noise
        )
        return outputs, {f"{GATE_PART}/{name}": value for name, value in updates.items()}

    initial = {f"{GATE_PART}/{name}": array for name, array in network.read_weights().items()}
    statistics = tuple(f"{GATE_PART}/{name}" for name in network.statistics)
    return Gate(
        input_name="x",
        shape=network.input_shape,
        specs=prefix_specs(GATE_PART, network.specs),
        apply=apply_network,
        noise=network.list_noise,
        statistics=statistics,
        initial=initial,
    )


def _build_gate_training(gate: Gate, batch: int, options: AemOptions) -> "Objective":
    from edgefl.program.compiler import objective as of
    from edgefl.program.compiler.optimizer import adamw

    def compute_loss(weights: Tensors, data: Tensors, noise: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        import tensorflow as tf

        logits, updates = gate.apply(weights, data[gate.input_name], True, noise)
        mixed = tf.reduce_sum(tf.nn.softmax(logits) * data["likelihood"], axis=-1)
        return -tf.math.log(mixed + LOG_EPSILON), updates

    data = (
        TensorSpec(gate.input_name, (batch, *gate.shape)),
        TensorSpec("likelihood", (batch, options.num_experts + 1)),
    )
    optimizer = adamw(options.gate_learning_rate, weight_decay=options.gate_weight_decay)
    return of.Objective(
        name="train_gate",
        kind="train",
        batch_size=batch,
        data=data,
        trained=gate.specs,
        noise=gate.noise(batch),
        assigned=gate.statistics,
        initial=gate.initial,
        optimizer=optimizer,
        loss_per_sample=compute_loss,
    )


def _build_gate_prediction(gate: Gate) -> "Objective":
    from edgefl.program.compiler import objective as of

    def predict_shares(weights: Tensors, data: Tensors) -> Tensor:
        import tensorflow as tf

        return tf.nn.softmax(gate.apply(weights, data[gate.input_name], False, None)[0])

    data = (TensorSpec(gate.input_name, (of.PREDICT_BATCH, *gate.shape)),)
    return of.Objective(
        name="predict_gate",
        kind="predict",
        batch_size=of.PREDICT_BATCH,
        data=data,
        frozen=gate.specs,
        out=predict_shares,
    )


def _build_mixture_prediction(
    network: "Network", local: "Network", gate: Gate, num_experts: int
) -> "Objective":
    """Return `predict_mixture`, the log of the mixed probability.

    The export contains the probability itself, because a LOG has no int8 form.
    """
    import tensorflow as tf

    from edgefl.program.compiler import objective as of

    names = [name_expert(index) for index in range(num_experts)]

    def mix_experts(weights: Tensors, data: Tensors) -> Tensor:
        x = data["x"]
        trunks = [network.apply_trunk(strip_prefix(name, weights), x) for name in names]
        logits = [
            network.apply_head(strip_prefix(name, weights), h) for name, h in zip(names, trunks, strict=True)
        ]
        logits.append(local.apply(strip_prefix(LOCAL_PART, weights), x)[0])
        # The gate's kernel includes the division of the mean, see `scale_gate_for_sum`.
        seen = x if gate.input_name == "x" else sum(trunks[1:], trunks[0])
        g = tf.nn.softmax(gate.apply(weights, seen, False, None)[0])
        parts = [g[:, i : i + 1] * tf.nn.softmax(expert_logits) for i, expert_logits in enumerate(logits)]
        return sum(parts[1:], parts[0])

    experts = tuple(spec for name in names for spec in prefix_specs(name, network.specs))
    frozen = (*experts, *prefix_specs(LOCAL_PART, local.specs), *gate.specs)
    return of.Objective(
        name="predict_mixture",
        kind="predict",
        batch_size=of.PREDICT_BATCH,
        data=(of.make_input_spec(network, of.PREDICT_BATCH),),
        frozen=frozen,
        out=lambda weights, data: tf.math.log(mix_experts(weights, data) + LOG_EPSILON),
        export_out=mix_experts,
    )


_SOURCE = "Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022"
ENTRIES = {
    "aem": Entry(
        options=AemOptions,
        factory=aem,
        objectives=build_aem_objectives,
        source=_SOURCE,
        models="num_experts",
        resolve=resolve_aem_options,
        needs_classes="its gate learns from the probability that each expert gives to a class",
    )
}
