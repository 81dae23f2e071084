"""The client runner, which runs the client functions of a plan in all engines and on a device."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from edgefl.base.errors import DataError, DivergedError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, Mixture, Scalars, Shard, Update
from edgefl.data.task_form import TaskShards
from edgefl.learning.algorithms import complete_algorithm_options, make_algorithm
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.names import COMPARE_SCALAR
from edgefl.learning.client.batch_norm import with_statistics
from edgefl.learning.client.comparison import ModelComparison, split_scores, with_scores
from edgefl.learning.client.compression import with_compression
from edgefl.learning.client.evaluation import evaluate_current_model
from edgefl.learning.client.local_training import derive_client_rng
from edgefl.learning.client.personalization import RngFactory, choose_personal_model, compare_models
from edgefl.learning.client.validation import ValidationSplit, hold_out_validation, read_personalization
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import Plan, read_task


@dataclass(frozen=True)
class WorkItem:
    """The work of one client in one round.

    The simulator makes it from a server state, a device from a task.

    Attributes:
        broadcast: the broadcast that the client receives.
        state: the state of the client after its previous round.
        client_id: the client.
        codec: codec of the client's updates, see `edgefl.base.codecs`.
        epochs: number of epochs to train instead of the algorithm's option. None uses the option.
        evaluate: whether the update reports the accuracy on the client's validation samples.
    """

    broadcast: Broadcast
    state: ClientState
    client_id: str
    codec: str = "fp32"
    epochs: int | None = None
    evaluate: bool = False


class ClientRunner:
    """Runs clients one after the other.

    Results depend only on the plan, the seed, the shard and the work item.

    Args:
        learner: runs the plan. All clients share it.
        shards: samples by client id, with labels as they are stored. A device has one shard.
    """

    def __init__(self, plan: Plan, learner: Learner, shards: Mapping[str, Shard], seed: int) -> None:
        self.plan = plan
        self.learner = learner
        self.shards: Mapping[str, Shard] = TaskShards(shards, read_task(plan.spec))
        """The shards in the form of the plan's task."""
        self.seed = seed
        self._algorithm = make_algorithm(plan.spec.algorithm, learner, plan.spec.options)
        self._settings = read_personalization(plan.spec)

    def configure_algorithm(self, item: WorkItem) -> Algorithm:
        """Return the algorithm with the epochs and the compression of a work item.

        It uses re-estimated statistics, see `with_statistics`.
        """
        algorithm = self._algorithm
        if item.epochs is not None:
            spec = self.plan.spec
            options = complete_algorithm_options(spec.algorithm, spec.options)
            algorithm = make_algorithm(spec.algorithm, self.learner, {**options, "epochs": item.epochs})
        return with_statistics(with_compression(algorithm, item.codec), self.learner)

    def split(self, client_id: str) -> ValidationSplit:
        """Return the samples of a client, with the validation samples held out."""
        share = self._settings.validation_share
        return hold_out_validation(self.shards[client_id], share, self.seed, client_id)

    def update(self, item: WorkItem) -> tuple[Update, ClientState]:
        """Train on the client's samples without the validation samples, see `Algorithm.local_update`.

        The metrics of the update include `epochs` if the work item sets them. If the work item asks for an
        evaluation, they include the accuracy on the validation samples before the training
        (`evaluate_current_model`). In the last round, they include the mean scores of the client's
        models, and the shares of a blend.

        Returns:
            The update and the client's new state.

        Raises:
            DataError: the shard cannot be trained on. The message names the client and the round.
            DivergedError: the loss is not finite. The message names the client and the round.
        """
        rng = derive_client_rng(self.seed, item.broadcast, item.client_id)
        samples = self.split(item.client_id)
        algorithm = self.configure_algorithm(item)
        further: dict[str, float] = {}
        before, _ = split_scores(item.state, samples)
        with prefix_errors(item, f"round {item.broadcast.round}"):
            if item.evaluate:
                further |= evaluate_current_model(algorithm, self.learner, item.broadcast, before, samples)
            update, state = algorithm.local_update(item.broadcast, before, samples.train, item.client_id, rng)
            if COMPARE_SCALAR in item.broadcast.scalars:
                comparison = self._compare(item, state, samples)
                further |= comparison.as_metrics()
                state = with_scores(state, comparison.scores, samples)
        if item.epochs is not None:
            further["epochs"] = float(item.epochs)
        return replace(update, metrics={**update.metrics, **further}), state

    def _compare(self, item: WorkItem, state: ClientState, samples: ValidationSplit) -> ModelComparison:
        """Return the comparison of the client's models, or an empty one if they cannot be compared."""
        if not (self._settings.select and len(samples.y)):
            return ModelComparison()
        try:
            return compare_models(
                self.configure_algorithm(item),
                self.learner,
                item.broadcast,
                state,
                samples,
                self._settings,
                self._make_rng_factory(item, "compare"),
            )
        except DivergedError:
            return ModelComparison()

    def _make_rng_factory(self, item: WorkItem, use: str = "") -> RngFactory:
        def make_rng(purpose: str) -> np.random.Generator:
            name = ":".join(filter(None, (item.client_id, use, purpose)))
            return derive_rng(self.seed, item.broadcast.round, name)

        return make_rng

    def personalize(self, item: WorkItem) -> tuple[Mixture, ClientState, Scalars]:
        """Make the client's personal model and measure it, see `choose_personal_model`.

        Returns:
            The shipped model, the client's new state, and the metrics.

        Raises:
            DataError: the shard cannot be trained on. The message names the client.
            DivergedError: no model could be made. The message names the client.
        """

        samples = self.split(item.client_id)
        state, scores = split_scores(item.state, samples)
        with prefix_errors(item, "personalization"):
            return choose_personal_model(
                self.configure_algorithm(item),
                self.learner,
                item.broadcast,
                state,
                self.shards[item.client_id],
                samples,
                self._settings,
                item.client_id,
                self._make_rng_factory(item),
                scores,
            )


@contextmanager
def prefix_errors(item: WorkItem, step: str) -> Iterator[None]:
    """Prefix the message of each DataError with the client of a work item and the step.

    Args:
        step: what the client does, such as `round 3`.

    Raises:
        DataError: the context raised one. Its class stays the same.
    """
    try:
        yield
    except DataError as error:
        raise type(error)(f"{item.client_id}, {step}: {error}") from error
