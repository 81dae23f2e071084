"""The sender of updates in masked rounds.

In a masked round, a device never sends the trained update itself. It sends only the messages of
`edgefl.security.secagg.participant`. The device draws new keys for each attempt at a round, and stores them
in memory until the next attempt, so that a repeated step gets the same bytes.

Attempts with different clients give different sums, whose difference may reveal an update. Therefore a device
takes part in at most MAX_ATTEMPTS attempts at one round.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from safetensors.numpy import load

from devices.order import SharingRules
from devices.session import Session, Superseded
from devices.store import FinishedRound
from devices.upload import send_update
from edgefl.errors import ConfigError, DataError, RoundError, WireError
from edgefl.types import Array
from edgefl.wire.masked import AGREE_STEP, MASK_STEP, MAX_ATTEMPTS, UNMASK_STEP, hash_context, parse_attempt
from edgefl.wire.messages import Receipt, Task

if TYPE_CHECKING:
    from edgefl.security.secagg.masking import FixedPointVector
    from edgefl.security.secagg.participant import Participant

LOGGER = logging.getLogger("edgefl.device")
MAX_STEP_BYTES = 16 * 1024 * 1024
DEVICE_METRICS = ("epochs", "seconds", "peak_rss_mb")
SHARED_METRICS = ("loss", *DEVICE_METRICS)


class CannotMaskError(ConfigError):
    """A device without the package that masks updates."""


@dataclass(frozen=True)
class MaskedAttempt:
    """This client's part in one attempt at a round.

    Attributes:
        task: the first task of the attempt.
        progress: the finished round whose update is sent.
        participant: the keys and messages of this client.
        make_vector: encodes the update as the vector to mask.
    """

    task: Task
    progress: FinishedRound
    participant: "Participant"
    make_vector: Callable[[], "FixedPointVector"]


def filter_masked_metrics(metrics: Mapping[str, float], requires_masks: bool = False) -> Mapping[str, float]:
    """Return the metrics of a masked update that may be published.

    Other metrics may reveal which model was trained. A device that requires masks does not publish `loss`
    either. The plan computes the loss, and a hostile plan may return any function of a sample.

    Args:
        metrics: metrics of the update.
        requires_masks: whether the owner allows masked updates only, see `SharingRules`.

    Returns:
        The metrics of `SHARED_METRICS` or, with `requires_masks`, of `DEVICE_METRICS`.
    """
    names = DEVICE_METRICS if requires_masks else SHARED_METRICS
    return {key: value for key, value in metrics.items() if key in names}


class MaskedSender:
    """Sends the masked updates of one device.

    Args:
        client_id: id of the device.
        authority: certificate authority of the enrolment in PEM, empty without an enrolment.
        sharing: the owner's rules about the data that the device may send.
    """

    def __init__(self, client_id: str, authority: str, sharing: SharingRules) -> None:
        self._client_id = client_id
        self._authority = authority
        self._sharing = sharing
        self._attempt: MaskedAttempt | None = None
        self._answered = 0
        self._attempts: tuple[str, int, int] = "", 0, 0  # session, round, number of attempts

    def send(self, session: Session, task: Task, progress: FinishedRound, blob: bytes) -> Receipt:
        """Take part in a masked round and return the last receipt.

        Args:
            session: the session of the device.
            task: the masked task.
            progress: the finished round that answers the task.
            blob: the trained update, encoded. It is not sent.

        Returns:
            The receipt, whose outcome is ok or rejected. A rejected receipt has a reason.

        Raises:
            Superseded: the aggregator no longer waits for the answer.
            CannotMaskError: this device lacks the package cryptography.
            DataError: the plan trains no shared model.
            LinkError: the link failed.
        """
        attempt = self._attempt
        if attempt is None or (attempt.task.session, attempt.task.nonce) != (task.session, task.nonce):
            count = self._attempts[2] + 1 if self._attempts[:2] == (task.session, task.round) else 1
            if count > MAX_ATTEMPTS:
                LOGGER.warning(
                    f"round {task.round}: the aggregator requests keys for more than {MAX_ATTEMPTS} "
                    "attempts; look at its log",
                    extra={"round": task.round},
                )
                return self._send_answer(session, task, b"")
            self._attempts = task.session, task.round, count
            attempt = self._attempt = self._begin_attempt(session, task, progress, blob)
            self._answered = session.steps_received  # Ignores steps of an earlier attempt
        receipt = self._send_answer(session, task, attempt.participant.advertise(), {}, progress.num_samples)
        while receipt.outcome == "ok":
            step = self._wait_for_step(session, task)
            receipt = self._answer(session, step)
            if step.phase == UNMASK_STEP:
                # A rejection is harmless: enough other clients may have answered before this client
                return replace(receipt, outcome="ok", reason="")
            if step.phase == AGREE_STEP:
                receipt = replace(receipt, outcome="ok", reason="")  # A rejection is harmless here, too
        return receipt

    def answer(self, session: Session) -> None:
        """Answer a step that arrives outside of `send`.

        The aggregator repeats a step after it restarts, and a restarted device receives a step again.

        Args:
            session: the session of the device.

        Raises:
            LinkError: the link failed.
        """
        if session.step and session.steps_received != self._answered:
            step = session.step
            try:
                self._answer(session, step)
            except Superseded:
                LOGGER.info(
                    f"round {step.round}: no answer was sent, because the aggregator no longer waits for it",
                    extra={"round": step.round},
                )

    def _begin_attempt(
        self, session: Session, task: Task, progress: FinishedRound, blob: bytes
    ) -> MaskedAttempt:
        try:
            from edgefl.security.secagg.participant import Participant
            from edgefl.security.secagg.vectors import encode_deltas, list_shapes
        except ImportError as error:
            raise CannotMaskError(
                f"round {task.round} is masked, and the package cryptography that it needs cannot be loaded "
                f"({error}); pip install 'cryptography>=44', or remove secure_aggregation from the federation"
            ) from error
        deltas: dict[str, dict[str, Array]] = {}
        for name, array in load(blob).items():
            model, _, weight = name.partition("/")
            deltas.setdefault(model, {})[weight] = array
        if not deltas:
            raise DataError(
                f"round {task.round} is masked, and its plan trains no shared model; remove "
                "secure_aggregation"
            )
        # A client trains one of several models, and all models have weights of the same shapes
        trained = next(iter(deltas.values()))
        shapes = list_shapes({model: deltas.get(model, trained) for model in task.models})
        context = hash_context(session.topics.federation, task)
        participant = Participant(
            client_id=self._client_id,
            context=context,
            trust=session.trust,
            authority=self._authority,
            least_clients=self._sharing.least_clients,
        )
        return MaskedAttempt(
            task=task,
            progress=progress,
            participant=participant,
            make_vector=partial(encode_deltas, deltas, progress.num_samples, shapes),
        )

    def _wait_for_step(self, session: Session, task: Task) -> Task:
        """Wait for the next step, or for the same step again."""
        while True:
            if (
                session.step
                and session.steps_received != self._answered
                and _is_same_attempt(session.step, task)
            ):
                return session.step
            if not session.is_current(task):
                raise Superseded
            session.pump(0.5)

    def _answer(self, session: Session, step: Task) -> Receipt:
        self._answered = session.steps_received
        attempt = self._attempt
        if attempt is None or not _is_same_attempt(step, attempt.task):
            # The keys of this attempt were lost with the previous process. An empty answer tells the
            # aggregator not to wait for this device.
            LOGGER.warning(
                f"round {step.round}: this device has no keys of the attempt, perhaps after a restart; the "
                "other clients remove its masks",
                extra={"round": step.round},
            )
            return self._send_answer(session, step, b"")
        try:
            [sha256] = step.models.values()
            request = session.fetch(lambda: session.is_current(step), {sha256: MAX_STEP_BYTES})[sha256]
            answer = attempt.participant.answer(step.phase, request, attempt.make_vector)
        except (RoundError, WireError, DataError) as error:
            LOGGER.warning(f"round {step.round}: {error}", extra={"round": step.round})
            return self._send_answer(session, step, b"")
        metrics = (
            filter_masked_metrics(attempt.progress.metrics, self._sharing.requires_masks)
            if step.phase == MASK_STEP
            else {}
        )
        return self._send_answer(session, step, answer, metrics, attempt.progress.num_samples)

    def _send_answer(
        self, session: Session, step: Task, blob: bytes, metrics: Mapping[str, float] = {}, samples: int = 1
    ) -> Receipt:
        return send_update(session, self._client_id, step, blob, metrics, samples)


def _is_same_attempt(step: Task, task: Task) -> bool:
    return (step.session, parse_attempt(step.nonce)) == (task.session, parse_attempt(task.nonce))
