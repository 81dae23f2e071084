"""The last step of a client: it makes several models, compares them, and ships a blend or the best one.

The models are the client's local model, the federated model, the federated model after some epochs on the
client's own samples, and the algorithm's mixture. First all models are made without the validation samples
and compared on them. Then all models are made again on all training samples. These are measured, and the
chosen one is shipped. Test samples do not affect the choice.

A detector of anomalies is never trained on the validation samples, because its alarm threshold comes from
them. Its last models are then compared, and no earlier ones.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from edgefl.base.config import PersonalizationConfig
from edgefl.base.errors import DivergedError
from edgefl.base.tasks.config import ANOMALY
from edgefl.base.tasks.scores import measure_sample_losses
from edgefl.base.types import Broadcast, ClientState, Mixture, Peer, Scalars, Shard, Weights
from edgefl.base.verdict import SHARE_PREFIX
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.names import (
    BLEND_MODEL,
    FEDERATED_MODEL,
    FINE_TUNED_MODEL,
    LOCAL_EPOCHS,
    LOCAL_MODEL,
    LOCAL_START,
    MIXTURE_MODEL,
)
from edgefl.learning.algorithms.options import extend_epochs
from edgefl.learning.client.batch_norm import reestimate_statistics
from edgefl.learning.client.blend import choose_members, fit_member_shares, join_members, split_members
from edgefl.learning.client.comparison import (
    ModelComparison,
    average_scores,
    read_blend_shares,
    read_model_order,
)
from edgefl.learning.client.measures import measure_test_samples, score_samples
from edgefl.learning.client.selection import SCORE_UNIT, SHIPPED_MODELS, Scores, choose_within_noise, is_worse
from edgefl.learning.client.validation import ValidationSplit
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import PREDICT_MIXTURE, PREDICT_SINGLE, TRAIN_SINGLE, PlanSpec, read_task

RngFactory = Callable[[str], np.random.Generator]
"""Returns a generator for a purpose. The empty purpose is for the algorithm."""
T = TypeVar("T")
ORDER_WITHOUT_SELECTION = (MIXTURE_MODEL, FEDERATED_MODEL, LOCAL_MODEL, FINE_TUNED_MODEL)
"""The order without selection: a client ships the first of these models that could be made."""
SHORT_SHARE = 0.1
"""A local model whose loss is above this share of ln C is short of training."""
SHORT_REGRESSION_SHARE = 0.01
"""The same share for a regression, whose loss can fall further below the one of predicting the mean."""
LARGER_STEPS = (3.0, 9.0)
"""Factors of the learning rate for a local model that is short of training."""
MIN_FALL = 0.9
"""A larger step is used if it brings the loss below this share of the loss without it."""
FAILED_FALL = 100
"""The last training of a model may have failed if its mean score fell by more than this, in thousandths."""
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingEnd:
    """When a classifier has learned its samples, so that its training may end before its maximum of epochs.

    Attributes:
        loss_share: it has learned them if the mean loss of an epoch is at most this share of ln C.
        least_steps: minimum number of steps. Fewer take little time, and the accuracy may still rise.
    """

    loss_share: float
    least_steps: int


LEARNED = TrainingEnd(loss_share=0.002, least_steps=500)
"""The end for a model to ship. Further epochs did not raise the accuracy measurably, see
`docs/decisions/0035-a-device-stops-when-it-has-learned.md`."""
COMPARED = TrainingEnd(loss_share=0.02, least_steps=200)
"""The end for a model that is only compared. It gives blends that are as good in less time."""


@dataclass(frozen=True)
class TrainedModel:
    """A model that was trained on a client's samples alone.

    Attributes:
        weights: its weights by name.
        loss: mean loss of the last epoch.
    """

    weights: Weights
    loss: float


@dataclass(frozen=True)
class Candidates:
    """The models that a client compares, made on the same samples.

    Attributes:
        models: the models by name, see `edgefl.learning.client.selection.COMPARED_MODELS`. Models that the
            algorithm lacks are left out.
        mixture: the algorithm's mixture, with its peers and diagnostics.
        state: the client's state after the personalization.
        failures: for each model whose training diverged, the reason, by name.
    """

    models: Mapping[str, Peer]
    mixture: Mixture
    state: ClientState
    failures: Mapping[str, str]


def choose_personal_model(
    algorithm: Algorithm,
    learner: Learner,
    broadcast: Broadcast,
    state: ClientState,
    shard: Shard,
    split: ValidationSplit,
    settings: PersonalizationConfig,
    client_id: str,
    make_rng: RngFactory,
    earlier_scores: Mapping[str, Scores] | None = None,
) -> tuple[Mixture, ClientState, Scalars]:
    """Make and measure the models of a client, and return the one to ship: a blend or a single model.

    Args:
        algorithm: the algorithm with its learner.
        broadcast: the last broadcast.
        state: the state of the client after its last round.
        shard: all training samples of the client, and its test samples.
        split: the same samples, with the validation samples held out.
        settings: `[personalization]` of the federation.
        client_id: the client, for warnings.
        make_rng: makes the generators. The same purpose always gives the same draws.
        earlier_scores: scores of the validation samples from the comparison in the last round. Without them,
            the models are made and compared now.

    Returns:
        The shipped model with the others as its peers, the client's state, and the metrics. The metrics are
            n_train, n_validation, n_test, accuracy_NAME of each model, accuracy_shipped, and shipped, an
            index into `SHIPPED_MODELS`. A blend has share_NAME of each member. With a local model there are
            also test_gained and test_lost. These count the test samples that only the shipped model or only
            the local model predicts correctly, or predicts better. Other tasks than classification have other
            measures than accuracy, see `edgefl.learning.client.measures`. Without test samples, a figure is
            NaN.

    Raises:
        DataError: the samples do not fit the plan.
        DivergedError: no model could be made.
    """

    is_detector = read_task(learner.spec).kind == ANOMALY
    scores = {} if is_detector else dict(earlier_scores or {})
    if settings.select and len(split.y) and not scores and not is_detector:
        scores = dict(compare_models(algorithm, learner, broadcast, state, split, settings, make_rng).scores)
    elif settings.select and not len(split.y):
        LOGGER.warning("%s: no sample to compare models on; a second recording would provide some", client_id)
    trained_on = split.train if is_detector else replace(shard, unseen_train=split.rows)
    candidates = make_candidates(algorithm, learner, broadcast, state, trained_on, settings, make_rng)
    if is_detector and settings.select and len(split.y):
        scores = {
            name: score_samples(learner, peer, split.x, split.y) for name, peer in candidates.models.items()
        }
    for name, reason in candidates.failures.items():
        LOGGER.warning("%s: the model %s is left out: %s", client_id, name, reason)
    order = read_model_order(broadcast.scalars) if settings.select else ORDER_WITHOUT_SELECTION
    blend = None
    if should_blend(settings, learner.spec):
        trained = drop_failed_models(learner, candidates.models, scores, split, client_id)
        members = choose_members(learner, trained, trained_on)
        if len(members) > 1:
            blend = join_members(members, read_blend_shares(broadcast.scalars))
    shares = (
        {member.name: member.share for member in split_members(learner.spec, blend.weights)} if blend else {}
    )
    choices = {name: peer for name, peer in candidates.models.items() if name in shares or not blend}
    single = choose_shipped_model(learner, choices, scores, split, order, client_id)
    chosen = BLEND_MODEL if blend else single
    peers = {**candidates.mixture.peers, **candidates.models, **({BLEND_MODEL: blend} if blend else {})}
    shipped = peers[chosen]
    rated = {name: measure_test_samples(learner, peer, shard) for name, peer in peers.items()}
    metrics = {
        "n_train": float(len(split.train.y_train)),
        "n_validation": float(len(split.y)),
        "n_test": float(len(shard.y_test)),
        **{
            f"{measure}_{name}": figure
            for name, (_, figures) in rated.items()
            for measure, figure in figures.items()
        },
        **{f"{measure}_shipped": figure for measure, figure in rated[chosen][1].items()},
        "shipped": float(SHIPPED_MODELS.index(chosen)),
        **{SHARE_PREFIX + name: share for name, share in shares.items()},
    }
    if LOCAL_MODEL in rated:
        metrics["test_gained"] = float((rated[chosen][0] > rated[LOCAL_MODEL][0]).sum())
        metrics["test_lost"] = float((rated[chosen][0] < rated[LOCAL_MODEL][0]).sum())
    validation = {f"validation/{name}": mean for name, mean in average_scores(scores).items()}
    mixture = Mixture(
        weights=shipped.weights,
        peers=peers,
        diagnostics={**candidates.mixture.diagnostics, **validation},
        signature=shipped.signature,
        single=single if blend else "",
    )
    return mixture, candidates.state, metrics


def should_blend(settings: PersonalizationConfig, spec: PlanSpec) -> bool:
    """Return whether a client ships a blend of its models, see `edgefl.learning.client.blend`.

    Args:
        settings: `[personalization]` of the federation.
    """
    return settings.select and settings.ship != "one" and read_task(spec).kind != ANOMALY


def choose_shipped_model(
    learner: Learner,
    models: Mapping[str, Peer],
    scores: Mapping[str, Scores],
    split: ValidationSplit,
    order: Sequence[str],
    client_id: str,
) -> str:
    """Return the name of the best single model.

    A client with a blend ships it only in an export of one member.

    The models of most tasks were trained on the validation samples too, so they should be at least as good on
    these as before. If the chosen model is significantly worse on them, its last training failed. The models
    are then chosen from by their new scores, which are all on samples that they have trained on.

    Args:
        models: the models that were made on all samples, by name.
        scores: scores of the models that were made without the validation samples, shape (n,), int64. Empty
            if nothing was compared.
        split: the client's samples.
        order: names of models, the preferred one first.
        client_id: the client, for warnings.
    """
    before = {name: values for name, values in scores.items() if name in models}
    if not before:
        return next(name for name in order if name in models)
    chosen = choose_within_noise(before, order, split.group)
    if not is_worse(score_samples(learner, models[chosen], split.x, split.y), before[chosen], split.group):
        return chosen
    LOGGER.warning(
        "%s: the model %s was better before its last training, so the best single model is chosen again",
        client_id,
        chosen,
    )
    after = {name: score_samples(learner, models[name], split.x, split.y) for name in before}
    return choose_within_noise(after, order, split.group)


def drop_failed_models(
    learner: Learner,
    models: Mapping[str, Peer],
    scores: Mapping[str, Scores],
    split: ValidationSplit,
    client_id: str,
) -> dict[str, Peer]:
    """Return the models whose last training did not fail.

    It failed if the model now scores worse on the validation samples than before it had seen them, beyond the
    noise and by more than `FAILED_FALL` on average.

    Args:
        models: the models that were made on all samples, by name.
        scores: scores of the models that were made without the validation samples, shape (n,), int64.
        split: the client's samples.
        client_id: the client, for warnings.
    """
    after = {
        name: score_samples(learner, peer, split.x, split.y)
        for name, peer in models.items()
        if name in scores
    }
    failed = [
        name
        for name, values in after.items()
        if scores[name].mean() - values.mean() > FAILED_FALL and is_worse(values, scores[name], split.group)
    ]
    if failed:
        LOGGER.warning(
            "%s: left out of the blend, because the last training made it worse: %s",
            client_id,
            ", ".join(
                f"{name} (mean score {after[name].mean() / SCORE_UNIT:.2f}, before "
                f"{scores[name].mean() / SCORE_UNIT:.2f})"
                for name in failed
            ),
        )
    return {name: peer for name, peer in models.items() if name not in failed}


def compare_models(
    algorithm: Algorithm,
    learner: Learner,
    broadcast: Broadcast,
    state: ClientState,
    split: ValidationSplit,
    settings: PersonalizationConfig,
    make_rng: RngFactory,
) -> ModelComparison:
    """Make the models of a client without its validation samples, and compare them on these.

    Args:
        algorithm: the algorithm with its learner.
        broadcast: the last broadcast.
        state: the state of the client after its last round.
        split: the client's training samples, with the validation samples held out.
        settings: `[personalization]` of the federation.
        make_rng: makes the generators. The same purpose always gives the same draws.

    Raises:
        DataError: the samples do not fit the plan.
        DivergedError: no model could be made.
    """
    candidates = make_candidates(
        algorithm, learner, broadcast, state, split.train, settings, make_rng, COMPARED
    )
    scores = {
        name: score_samples(learner, peer, split.x, split.y) for name, peer in candidates.models.items()
    }
    if not should_blend(settings, learner.spec):
        return ModelComparison(scores)
    members = choose_members(learner, candidates.models, split.train)
    return ModelComparison(scores, fit_member_shares(learner, members, split.x, split.y, split.group))


def make_candidates(
    algorithm: Algorithm,
    learner: Learner,
    broadcast: Broadcast,
    state: ClientState,
    shard: Shard,
    settings: PersonalizationConfig,
    make_rng: RngFactory,
    end: TrainingEnd = LEARNED,
) -> Candidates:
    """Make the models of a client on the training samples of a shard.

    A model whose training diverges is left out. If no model is left, the client uses the mixture of the last
    broadcast without training it.

    Args:
        algorithm: the algorithm with its learner.
        broadcast: the last broadcast.
        state: the state of the client after its last round.
        settings: `[personalization]` of the federation.
        make_rng: makes the generators. The same purpose always gives the same draws.
        end: when the training of the local and of the fine-tuned model may end early.

    Raises:
        DataError: the samples do not fit the plan.
        DivergedError: no model could be made.
    """
    local_epochs = extend_epochs(
        settings.epochs, settings.least_steps, len(shard.y_train), settings.batch_size
    )
    failures: dict[str, str] = {}
    models: dict[str, Peer] = {}

    def try_make(name: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except DivergedError as error:
            failures[name] = str(error)
            return None

    def train_candidate(name: str, start: Weights, epochs: int, enough: float = math.inf) -> None:
        def train(rate: float) -> TrainedModel:
            return train_single(learner, start, shard, epochs, rate, make_rng(name), end)

        trained = try_make(name, lambda: train_to_end(train, settings.learning_rate, enough))
        if trained is not None:
            models[name] = Peer(PREDICT_SINGLE, trained.weights)

    mixture, after = try_make(
        MIXTURE_MODEL, lambda: algorithm.personalize(broadcast, state, shard, make_rng(""))
    ) or (
        Mixture(weights={}),
        state,
    )
    if LOCAL_START in broadcast.models:
        all_epochs = int(broadcast.scalars[LOCAL_EPOCHS]) + local_epochs
        train_candidate(
            LOCAL_MODEL, broadcast.models[LOCAL_START], all_epochs, find_final_loss(learner.spec, shard)
        )
    federated = mixture.peers.get(FEDERATED_MODEL)
    untrained: Peer | None = None
    if MIXTURE_MODEL in failures:
        current = try_make(FEDERATED_MODEL, lambda: algorithm.current(broadcast, state, shard))
        if current is not None and current.signature == PREDICT_SINGLE:
            federated = current
        else:
            untrained = current
    if federated is not None:
        models[FEDERATED_MODEL] = federated
    shared = [
        peer for peer in (federated, *mixture.peers.values()) if peer and peer.signature == PREDICT_SINGLE
    ]
    if settings.select and shared:
        train_candidate(FINE_TUNED_MODEL, shared[0].weights, local_epochs)
    if MIXTURE_MODEL not in failures:
        models[MIXTURE_MODEL] = Peer(PREDICT_MIXTURE, mixture.weights)
    if not models and untrained is not None:
        models[MIXTURE_MODEL] = untrained
        failures[MIXTURE_MODEL] += "; the client uses the mixture of the last round instead"
    if not models:
        raise DivergedError(failures[MIXTURE_MODEL])
    return Candidates(models=models, mixture=mixture, state=after, failures=failures)


def find_final_loss(spec: PlanSpec, shard: Shard) -> float:
    """Return the loss above which a local model is short of training, infinity if it is unknown.

    It is a share of the loss of a model that guesses: ln C, or for a regression the loss of always predicting
    the mean.
    """
    task = read_task(spec)
    if task.is_classification:
        return SHORT_SHARE * math.log(max(shard.num_classes, 2))
    if task.kind == ANOMALY:  # A lower loss on normal samples need not find more anomalies
        return math.inf
    mean = np.broadcast_to(shard.y_train.mean(axis=0), shard.y_train.shape)
    return SHORT_REGRESSION_SHARE * float(measure_sample_losses(task.loss_name, mean, shard.y_train).mean())


def find_learned_loss(spec: PlanSpec, shard: Shard, end: TrainingEnd) -> float:
    """Return the loss at which a model has learned the samples.

    It is -infinity for other tasks than classification, which train all epochs.

    Args:
        end: the share of ln C at which they are learned.
    """
    if not read_task(spec).is_classification:
        return -math.inf
    return end.loss_share * math.log(max(shard.num_classes, 2))


def train_to_end(train: Callable[[float], TrainedModel], learning_rate: float, enough: float) -> TrainedModel:
    """Return a trained model, with larger steps if it is short of training after all epochs.

    It is then trained again with three times the rate, and with nine times if it is still short. The model
    with the smaller rate stays unless the loss falls by a tenth: with augmentation, a loss stays high at any
    rate.

    Args:
        train: trains the model with a learning rate. Each call starts again, with the same draws.
        learning_rate: step size of the first training.
        enough: loss above which the model is short of training.

    Raises:
        DataError: the samples do not fit the plan.
        DivergedError: the loss of the first training is not a finite number.
    """
    model = train(learning_rate)
    for factor in LARGER_STEPS:
        if model.loss <= enough:
            break
        try:
            faster = train(factor * learning_rate)
        except DivergedError:
            break
        if faster.loss > MIN_FALL * model.loss:
            break
        model = faster
    return model


def train_single(
    learner: Learner,
    start: Weights,
    shard: Shard,
    epochs: int,
    learning_rate: float,
    rng: np.random.Generator,
    end: TrainingEnd = LEARNED,
) -> TrainedModel:
    """Return one model, trained from these weights on the training samples of a shard.

    The training ends earlier if the model has learned the samples, see `find_learned_loss`.

    Args:
        start: the weights before the training.
        epochs: maximum number of epochs.
        rng: draws the batches and the noise.
        end: when the training may end early.

    Raises:
        DataError: the samples do not fit the plan.
        DivergedError: the loss is not a finite number.
    """
    batch_size = learner.spec.find_signature(TRAIN_SINGLE).batch_size
    trained, loss = learner.fit(
        TRAIN_SINGLE,
        start,
        {"x": shard.x_train},
        shard.y_train,
        epochs=epochs,
        rng=rng,
        hyper={"learning_rate": learning_rate},
        final_loss=find_learned_loss(learner.spec, shard, end),
        least_epochs=extend_epochs(1, end.least_steps, len(shard.y_train), batch_size),
    )
    weights = {**start, **trained}
    return TrainedModel(
        reestimate_statistics(learner, TRAIN_SINGLE, weights, shard.x_train, shard.y_train, rng), loss
    )
