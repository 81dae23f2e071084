"""The keys of a device in masked rounds.

In a masked round, a device never sends the trained update itself. It sends only the messages of
`edgefl.protocol.security.secagg.participant`. The device draws new keys for each attempt at a round, and
stores them in memory until the next attempt, so that a repeated step gets the same bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from safetensors.numpy import load

from edgefl.base.errors import ConfigError, DataError
from edgefl.base.types import Array
from edgefl.protocol.device.order import SharingRules
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.wire.masked import hash_context
from edgefl.protocol.wire.messages import Task

if TYPE_CHECKING:
    from edgefl.protocol.security.secagg.masking import FixedPointVector
    from edgefl.protocol.security.secagg.participant import Participant


class CannotMaskError(ConfigError):
    """The device lacks the package that masks updates."""


@dataclass(frozen=True)
class MaskedAttempt:
    """The part of a client in one attempt at a round.

    Attributes:
        task: the first task of the attempt.
        participant: the keys and messages of this client.
        make_vector: encodes the update as the vector to mask.
    """

    task: Task
    participant: "Participant"
    make_vector: Callable[[], "FixedPointVector"]

    def advertise(self) -> bytes:
        """Return the first message of the attempt, with the public keys of this client."""
        return self.participant.advertise()

    def answer_step(self, step: Task, request: bytes) -> bytes:
        """Return the answer to a step.

        Args:
            request: the blob of the step.

        Raises:
            RoundError: the request breaks a rule that protects the updates.
            WireError: the request is malformed.
            DataError: the update cannot be encoded as a vector.
        """
        return self.participant.answer(step.phase, request, self.make_vector)


def draw_attempt(
    task: Task,
    update: bytes,
    num_samples: int,
    client_id: str,
    trust: Trust,
    authority: str,
    sharing: SharingRules,
) -> MaskedAttempt:
    """Draw the keys of an attempt.

    Args:
        task: the masked task.
        update: the trained update, encoded. It is not sent.
        num_samples: number of samples that weigh the update.
        trust: signs messages.
        authority: certificate authority of the enrolment in PEM, empty without an enrolment.
        sharing: the owner's rules about the data that the device may send.

    Raises:
        CannotMaskError: this device lacks the package cryptography.
        DataError: the plan trains no shared model.
    """
    try:
        from edgefl.protocol.security.secagg.participant import Participant
        from edgefl.protocol.security.secagg.vectors import encode_deltas, list_shapes
    except ImportError as error:
        raise CannotMaskError(
            f"round {task.round} is masked, and the package cryptography that it needs cannot be loaded "
            f"({error}); pip install 'cryptography>=44', or remove secure_aggregation from the federation"
        ) from error
    deltas: dict[str, dict[str, Array]] = {}
    for name, array in load(update).items():
        model, _, weight = name.partition("/")
        deltas.setdefault(model, {})[weight] = array
    if not deltas:
        raise DataError(
            f"round {task.round} is masked, and its plan trains no shared model; remove secure_aggregation"
        )
    # A client trains one of several models, and all models have weights of the same shapes
    trained = next(iter(deltas.values()))
    shapes = list_shapes({model: deltas.get(model, trained) for model in task.models})
    participant = Participant(
        client_id=client_id,
        context=hash_context(trust.federation, task),
        trust=trust,
        authority=authority,
        least_clients=sharing.least_clients,
    )
    return MaskedAttempt(
        task=task, participant=participant, make_vector=partial(encode_deltas, deltas, num_samples, shapes)
    )
