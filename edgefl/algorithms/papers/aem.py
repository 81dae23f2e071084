"""Adaptive Expert Models: clients explore the cluster models, then mix all of them with a local one under a
gate.

Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022, algorithms 1 to 4 and
equation 5:
IFCA, where a client takes the model of lowest loss with probability 1 - epsilon, else any of the J, the best
among them; a model that stopped improving is no longer selectable (optional). Only clients that chose a model
by its loss count for that. Afterwards, on each client: a local model (AdamW), then a gate
(AdamW), softmax over J + 1, so that p(y|x) = sum_j g_j(x) p_j(y|x) + g_l(x) p_l(y|x); its loss is -log
p(y|x).

Traffic: that of IFCA, down only the models still selectable; with early stopping up one more number, the
chosen model's loss on the client's validation samples, unless the client explored. At the end down all J, the
start of the local model and of a gate that has one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgefl.algorithms.arithmetic import prefixed
from edgefl.algorithms.base import FEDERATE, PERSONALIZE, Algorithm
from edgefl.algorithms.draws import without_draws
from edgefl.algorithms.entry import entry
from edgefl.algorithms.papers.aem_objectives import GATE, LOCAL, aem_objectives, for_sum
from edgefl.algorithms.papers.fedavg import FEDERATED
from edgefl.algorithms.papers.ifca import (
    EXPERT,
    MAX_SHARE,
    experts,
    ifca,
    label_log_p,
    lowest,
    name_of,
    split_validation,
)
from edgefl.algorithms.papers.pfl_moe import split_gate
from edgefl.errors import ConfigError
from edgefl.learner.base import Learner, evaluate
from edgefl.types import Broadcast, ClientState, Mixture, Peer, ServerState, Shard, Update, Weights

VALIDATION = "validation_loss"
BEST = "best/"
WAITED = "waited/"


def explore(received: Mapping[int, Weights], epsilon: float, rng: np.random.Generator) -> dict[int, Weights]:
    """Return one of the models with probability epsilon, each alike; else all, to choose from. At epsilon 0
    nothing is drawn.
    """
    if epsilon and received and rng.random() < epsilon:
        index = list(received)[int(rng.integers(len(received)))]
        return {index: received[index]}
    return dict(received)


def waits(scalars: Mapping[str, float], means: Mapping[int, float]) -> dict[str, float]:
    """Return scalars with each model's lowest mean validation loss and the rounds that it has waited for a
    lower one.

    A round in which no client validated a model does not count for that model.
    """
    found = dict(scalars)
    for index, mean in sorted(means.items()):
        better = mean < found.get(f"{BEST}{index}", np.inf)
        found[f"{WAITED}{index}"] = 0.0 if better else found.get(f"{WAITED}{index}", 0.0) + 1.0
        found[f"{BEST}{index}"] = mean if better else found.get(f"{BEST}{index}", mean)
    return found


def selectable(state: ServerState, patience: int) -> dict[int, Weights]:
    """Return the cluster models that are still trained, by index; patience 0: all."""
    waited = {index: state.scalars.get(f"{WAITED}{index}", 0.0) for index in experts(state.models)}
    return {
        index: model
        for index, model in experts(state.models).items()
        if not patience or waited[index] < patience
    }


def aem(
    learner: Learner | None,
    *,
    epsilon: float = 0.33,
    patience: int = 0,
    validation_share: float = 0.1,
    local_model: str = "",
    local_options: Mapping[str, Any] = {},
    local_epochs: int = 200,
    local_learning_rate: float = 2.69e-4,
    local_weight_decay: float = 9.89e-3,
    gate: str = "pixels",
    gate_options: Mapping[str, Any] = {},
    gate_epochs: int = 40,
    gate_learning_rate: float = 1e-3,
    gate_weight_decay: float = 6.88e-4,
    gate_share: float = 0.25,
    gate_unseen: bool = False,
    baselines: bool = False,
    **federation: Any,
) -> Algorithm:
    """Return AEM over IFCA (with the keywords `federation`); epsilon 0 is without exploration.

    patience: rounds without a lower validation loss after which a model stops, 0: none does; when all have
    stopped the federation ends. validation_share: of a client's training samples, held back from the cluster
    models for that and for the choice of the best one at the end. local_model: a model's name with its
    options; empty
    for the federated architecture. gate: `pixels` (linear), `features` (linear, on the mean of the experts'
    trunks), `cnn` (the paper's, the model gate-cnn) or a model's name, with its options. gate_share: of the
    training samples, held back from the local model for the gate; 0 trains both on all. gate_unseen: the gate
    trains on the validation samples instead, which neither the local model nor the cluster models trained on;
    validation_share is then the gate's share too. The peer `local` trains on all samples. baselines: also the
    best cluster model fine-tuned as the local one is.
    Values are those of the paper for CIFAR-10, but for the gate's. The paper trains it on what the local
    model has learnt by heart, and 3e-6 over 200 epochs leave it nearly as it began; a gate that does learn
    there trusts the local model alone, and loses with IID data. Raises ConfigError for shares and
    probabilities that are none.
    """
    del local_options, gate_options
    _check_shares(epsilon=epsilon, gate_share=gate_share)
    for name, is_on in (("patience", bool(patience)), ("gate_unseen", gate_unseen)):
        if is_on and not validation_share:
            raise ConfigError(
                f"[algorithm] {name} needs samples to validate on; set validation_share above 0, such as 0.1"
            )
    base = ifca(learner, validation_share=validation_share, **federation)
    local_hyper = {"learning_rate": local_learning_rate, "weight_decay": local_weight_decay}
    gate_hyper = {"learning_rate": gate_learning_rate, "weight_decay": gate_weight_decay}

    def init(weights: Weights, rng: np.random.Generator) -> ServerState:
        own = {
            name: array for name, array in weights.items() if not name.startswith((f"{LOCAL}/", f"{GATE}/"))
        }
        state = base.init(own, rng)
        starts = {
            part: {n: a for n, a in weights.items() if n.startswith(f"{part}/")} for part in (LOCAL, GATE)
        }
        given = {part: start for part, start in starts.items() if start}
        return replace(state, models={**state.models, LOCAL: without_draws(own), **given})

    def broadcast(state: ServerState, client_id: str) -> Broadcast:
        if state.phase == PERSONALIZE:
            return Broadcast(state.round, state.phase, state.models)
        models = {name_of(index): model for index, model in selectable(state, patience).items()}
        return Broadcast(state.round, state.phase, models)

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        assert learner is not None
        received = experts(broadcast.models)
        offered = explore(received, epsilon, rng)
        sent = replace(broadcast, models={name_of(index): model for index, model in offered.items()})
        update, state = base.local_update(sent, state, shard, client_id, rng)
        _, held_out = split_validation(len(shard.y_train), validation_share)
        explored = len(offered) < len(received)
        if not patience or explored or not len(held_out):
            return update, state
        chosen = received[int(update.metrics[EXPERT])]
        loss = evaluate(learner, "predict", chosen, shard.x_train[held_out], shard.y_train[held_out]).loss
        return replace(update, metrics={**update.metrics, VALIDATION: loss}), state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        if state.phase != FEDERATE:  # all models have stopped: a round changes nothing
            return replace(state, round=state.round + 1)
        sums: dict[int, tuple[float, float]] = {}

        def noted() -> Iterator[Update]:
            for update in updates:
                loss = update.metrics.get(VALIDATION, np.nan)
                for index in experts(update.deltas) if patience and np.isfinite(loss) else ():
                    total, count = sums.get(index, (0.0, 0.0))
                    sums[index] = (total + loss * update.num_samples, count + update.num_samples)
                yield update

        after = base.aggregate(state, noted())
        after = replace(
            after,
            scalars=waits(after.scalars, {index: total / count for index, (total, count) in sums.items()}),
        )
        return after if selectable(after, patience) else replace(after, phase=PERSONALIZE)

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        assert learner is not None
        received = experts(broadcast.models)
        x = shard.x_train
        y = shard.y_train
        every = np.arange(len(y))
        train, held_out = split_validation(len(y), validation_share)
        if gate_unseen and len(held_out):
            own = train
            gated = held_out
        else:
            own, gated = split_gate(len(y), gate_share, rng) if gate_share else (every, every)
        selecting = held_out if len(held_out) else every
        log_p = {index: label_log_p(learner, "predict", model, x, y) for index, model in received.items()}
        best = lowest({index: -float(each[selecting].mean()) for index, each in log_p.items()})

        def fit(signature: str, weights: Weights, rows: np.ndarray) -> Weights:
            trained = learner.fit(
                signature, weights, {"x": x[rows]}, y[rows], epochs=local_epochs, rng=rng, hyper=local_hyper
            )[0]
            return {**weights, **trained}

        first = {name.removeprefix(f"{LOCAL}/"): array for name, array in broadcast.models[LOCAL].items()}
        local = fit("train_local", first, own)
        predict_local = "predict_local" if local_model else "predict"
        of_local = label_log_p(learner, predict_local, local, x[gated], y[gated])
        likelihood = np.exp(np.stack([*(each[gated] for each in log_p.values()), of_local], axis=1)).astype(
            np.float32
        )
        features = gate == "features"
        seen = {"features": _mean_features(learner, received, x)} if features else {"x": x}
        start = {
            spec.name: np.zeros(spec.shape, np.float32)
            for spec in learner.spec.signature("predict_gate").frozen
        }
        data = {**{name: array[gated] for name, array in seen.items()}, "likelihood": likelihood}
        begin = {**start, **broadcast.models.get(GATE, {})}
        trained = {
            **begin,
            **learner.fit("train_gate", begin, data, y[gated], epochs=gate_epochs, rng=rng, hyper=gate_hyper)[
                0
            ],
        }
        weights = learner.predict("predict_gate", trained, seen)

        parts = {name_of(index): model for index, model in received.items()} | {LOCAL: local}
        frozen = {
            name: array for part, model in parts.items() for name, array in prefixed(part, model).items()
        }
        peers = {
            FEDERATED: Peer("predict", received[best]),
            LOCAL: Peer(predict_local, fit("train_local", first, every) if len(own) < len(every) else local),
            "ensemble": Peer("predict_mixture", {**frozen, **start}),  # a gate of zeros weighs all alike
        }
        if baselines:
            peers["tuned"] = Peer(
                "predict", fit("train_tuned" if local_model else "train_local", received[best], every)
            )
        usage = {
            f"{GATE}/{part}": float(mean) for part, mean in zip(parts, weights.mean(axis=0), strict=True)
        }
        used = len(np.unique(weights.argmax(axis=1)))
        mixed = {**frozen, **(for_sum(trained, len(received)) if features else trained)}
        return Mixture(mixed, peers, {"best": float(best), "experts_used": float(used), **usage}), state

    return replace(  # with patience, validation losses decide which models are sent
        base,
        name="aem",
        init=init,
        broadcast=broadcast,
        local_update=local_update,
        aggregate=aggregate,
        personalize=personalize,
        by_sums=not patience,
    )


def _mean_features(learner: Learner, received: Mapping[int, Weights], x: np.ndarray) -> np.ndarray:
    total = sum(learner.predict("features", model, {"x": x}) for model in received.values())
    return np.asarray(total / np.float32(len(received)), np.float32)


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        limit = 1.0 if name == "epsilon" else MAX_SHARE
        if not 0 <= share <= limit:
            raise ConfigError(f"[algorithm] {name} is {share}, expected a share from 0 to {limit}")


_SOURCE = "Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022"
ENTRIES = {"aem": entry(aem, aem_objectives, _SOURCE, ifca, aem, models="num_experts")}
