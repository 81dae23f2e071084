"""Secure aggregation at the server: rounds of which the server sees only the sum. Each round has five steps.

`edgefl.protocol.wire.masked` defines the messages. Clients train first, and advertise keys when they have an
update. The first step therefore closes by the deadline and quorum of the configuration, and a slow client
does not delay the other steps. Each later step includes the clients that answered the step before.

    a client drops out before its vector arrives   shares of its mask key remove its masks
    a client drops out afterwards                  its vector counts, and shares of its seed remove its self
                                                   mask
    too few clients answer                         the round is repeated from the start, with other keys
    a share is not genuine                         the module `complaints` finds who may be at fault, and the
                                                   next attempt excludes these clients

Until the set of vectors in the sum is settled, an attempt exists only in memory. An aggregator that was
killed then repeats the round with other keys. A settled set is stored, and a restarted aggregator completes
the last two steps with it. Two sums of one round over two sets of clients would reveal their difference.

Source: Bonawitz et al., Practical Secure Aggregation, CCS 2017, figure 4, as in
`edgefl.protocol.security.secagg.secure_sum`.
"""

import hashlib
from collections.abc import Generator
from dataclasses import replace

from edgefl.base.errors import RoundError, WireError
from edgefl.protocol.security.secagg.complaints import Fault
from edgefl.protocol.security.secagg.masking import MIN_MASKED_CLIENTS
from edgefl.protocol.security.secagg.vectors import Shapes, decode_means, measure_vector
from edgefl.protocol.server.rounds import Round
from edgefl.protocol.server.secagg.attempt import AttemptError, CollectRequest, SecAggAttempt, SecAggServices
from edgefl.protocol.server.secagg.checks import SUM_CLIENT_ID, UnsettledError
from edgefl.protocol.server.secagg.masked_sum import MaskedSum
from edgefl.protocol.server.spread import measure_loss
from edgefl.protocol.server.tasks import ClientTask, RoundTasks
from edgefl.protocol.wire.chunks import CHUNK_BYTES, count_chunks
from edgefl.protocol.wire.masked import MAX_ATTEMPTS
from edgefl.protocol.wire.messages import Begin
from edgefl.protocol.wire.tensors import encode_models

MAX_FAILURES = 4
"""Number of failed attempts, without a client to exclude, after which a round fails."""


class MaskedRounds:
    """Plays masked rounds. It stores the means of a round as one update with the client id `SUM_CLIENT_ID`.

    Args:
        services: the functions of the server that masked rounds need.
    """

    def __init__(self, services: SecAggServices) -> None:
        self._services = services

    def play(
        self, begun: Round, tasks: RoundTasks
    ) -> Generator[CollectRequest, Round, tuple[Round, list[Begin]]]:
        """Play a round.

        Clients that may be at fault are excluded from the following attempts. The quorum then counts the
        remaining clients only.

        Args:
            tasks: makes the first task of each client.

        Returns:
            The round with the clients whose vectors are in the sum, and their announcements.

        Raises:
            UnsettledError: the round missed its quorum, too many attempts failed, or fewer than three clients
                are left. The set of vectors in the sum was not settled.
            RoundError: the round failed after this set was settled.
            StateError: the stored sum is damaged.
            ConfigError: the tasks of the clients differ.
        """
        services = self._services
        begun = replace(
            begun,
            cohort=tuple(client_id for client_id in begun.cohort if client_id != SUM_CLIENT_ID),
            received={},
        )
        base = tasks.prepare(begun.cohort[0])
        shapes = {model: {spec.name: spec.shape for spec in specs} for model, specs in base.expected.items()}
        masked = services.load(base.task.session, begun.number, measure_vector(shapes))
        begun = services.remove_excluded(begun)
        if masked is None and len(begun.cohort) < MIN_MASKED_CLIENTS:
            raise UnsettledError(
                f"round {begun.number} has {len(begun.cohort)} clients, expected {MIN_MASKED_CLIENTS} or "
                "more for a masked sum; add clients"
            )
        excluded: dict[str, Fault] = {}
        failures = 0
        for number in range(1, MAX_ATTEMPTS + 1):
            cohort = tuple(client_id for client_id in begun.cohort if client_id not in excluded)
            left = replace(begun, cohort=cohort, needed=min(begun.needed, len(cohort)))
            attempt = SecAggAttempt(services, left, tasks, shapes)
            try:
                if masked is None:
                    masked = yield from attempt.gather_vectors()
                    services.save(masked)
                if not masked.agreed:
                    masked = yield from attempt.agree_on_lists(masked)
                    services.save(masked)
                if not masked.is_unmasked:
                    masked = yield from attempt.unmask(masked)
                    services.save(masked)
                self._keep(masked, shapes, base)
                received = {begin.client_id: begin.sha256 for begin in masked.begins}
                faults = {client_id: fault.reason for client_id, fault in excluded.items()}
                failed = {**attempt.round_so_far.failed, **faults}
                closed = replace(attempt.round_so_far, cohort=begun.cohort, received=received, failed=failed)
                return closed, list(masked.begins)
            except RoundError as error:
                if masked is None:
                    raise UnsettledError(str(error)) from error
                raise
            except (AttemptError, WireError) as error:
                masked = None
                services.save(None)
                named = error.excluded if isinstance(error, AttemptError) else {}
                excluded |= named
                failures += not named
                for client_id, fault in sorted(named.items()):
                    services.log(
                        f"{client_id} {fault.reason}; the next attempt at this round excludes it; "
                        f"{fault.remedy}"
                    )
                if (count := len(set(begun.cohort) - set(excluded))) < MIN_MASKED_CLIENTS:
                    raise UnsettledError(
                        f"round {begun.number}: {error}; {count} clients are left without "
                        f"{', '.join(sorted(excluded))}, expected {MIN_MASKED_CLIENTS} or more; update or "
                        "revoke the excluded clients, or add clients"
                    ) from error
                if failures == MAX_FAILURES or number == MAX_ATTEMPTS:
                    break
                services.log(f"round {begun.number}: {error}; the round is played again with other masks")
        raise UnsettledError(
            f"round {begun.number} has no sum after {number} attempts; look at the devices' logs, or raise "
            "deadline_s"
        )

    def _keep(self, masked: MaskedSum, shapes: Shapes, base: ClientTask) -> None:
        services = self._services
        if gone := sorted(set(masked.shared) - set(masked.clients)):
            services.log(
                f"round {masked.round}: {', '.join(gone)} dropped out; shares of the other clients removed "
                "the masks"
            )
        samples = sum(begin.num_samples for begin in masked.begins)
        # A client can mark a model as trained that no client trains
        means = {
            model: weights
            for model, weights in decode_means(masked.total, shapes, samples).items()
            if base.trained.allows(model)
        }
        if not means:
            return
        blob = encode_models(means)
        begin = Begin(
            client_id=SUM_CLIENT_ID,
            session=masked.session,
            round=masked.round,
            plan=base.task.plan,
            sha256=hashlib.sha256(blob).hexdigest(),
            size=len(blob),
            count=count_chunks(len(blob)),
            chunk_bytes=CHUNK_BYTES,
            num_samples=1,
            metrics={"loss": measure_loss(begin.metrics for begin in masked.begins)},
            nonce=masked.attempt,
            ts=0.0,
        )
        services.keep_means(begin, {model: base.expected[model] for model in means}, blob)
