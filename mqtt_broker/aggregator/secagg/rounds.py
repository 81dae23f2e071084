"""A round of which the aggregator learns the sum alone: five exchanges, each a round of its own of the round
machine.

Bonawitz et al., Practical Secure Aggregation, CCS 2017, figure 4, as in `edgefl.security.secagg.secure_sum`;
what is said, in `wire.masked`. Devices train first and advertise keys when they have an update, so the
deadline and the quorum of the configuration close the first exchange, and a slow board costs the others
nothing. The others take those who answered the one before.

    who dropped out before its words came   its masks are taken off by the others' shares of its key
    after                                   its words count; the others reveal the seed of its own mask
    too few answered                        the round is played again from the start, with other keys
    a share that is not genuine             its sender is named (`edgefl.security.secagg.disputes`), and the
                                            next attempt goes without it

Until it is settled whose words the sum holds, an attempt is all in memory: an aggregator that was killed
begins the round anew, with other keys. Then `masked.sum` has what the last two exchanges need, and after a
restart those go on: two sums of one round, over two sets of clients, would tell their difference.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.algorithms.base import Algorithm
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError, RoundError, WireError
from edgefl.security.secagg.disputes import Fault
from edgefl.security.secagg.masking import LEAST_CLIENTS
from edgefl.security.secagg.summing import check_secure
from edgefl.security.secagg.vectors import Shapes, means_of, size_of
from edgefl.security.trust import Trust
from edgefl.server.rounds import Round
from edgefl.server.tasks import Brief, Tasks
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.wire.chunks import CHUNK_BYTES, chunk_count
from edgefl.wire.masked import MOST_ATTEMPTS
from edgefl.wire.messages import Begin
from edgefl.wire.tensors import encode_models
from mqtt_broker.aggregator.exchange import Exchange
from mqtt_broker.aggregator.results import weighted_loss
from mqtt_broker.aggregator.spool import Spool

if TYPE_CHECKING:
    from mqtt_broker.aggregator.secagg.state import Held

ATTEMPTS = 4
"""Attempts at a round that may fail without anybody who can be left out of the next. In all there are at most
MOST_ATTEMPTS.
"""
SUM = ""
"""Whose the means of a round are, in spool and journal: nobody's."""


class UnsettledError(RoundError):
    """A masked round failed before it was settled whose words its sum holds, so another cohort may play
    it.
    """


def check_masked(algorithm: Algorithm, config: FederationConfig) -> None:
    """Raise ConfigError when secure aggregation is asked for and cannot be kept, see `check_secure`."""
    check_secure(algorithm, config)
    if config.privacy.secure_aggregation and config.min_clients < LEAST_CLIENTS:
        raise ConfigError(
            f"min_clients is {config.min_clients}, expected {LEAST_CLIENTS} or more for secure_aggregation"
        )


class MaskedRounds:
    """Plays masked rounds on an exchange, and leaves the means of each in the spool, as one update of nobody.

    introduce: a client's signing key and the authority's voucher for it, where devices are enrolled.
    """

    def __init__(
        self,
        exchange: Exchange,
        spool: Spool,
        trust: Trust,
        introduce: Callable[[str], tuple[str, str]] | None,
        directory: Path,
        note: Callable[[str], None],
    ) -> None:
        self._exchange = exchange
        self._spool = spool
        self._trust = trust
        self._introduce = introduce
        self._note = note
        self._path = AggregatorFiles(directory).masked_sum

    def play(self, begun: Round, tasks: Tasks, accept: Callable[[Begin], None]) -> tuple[Round, list[Begin]]:
        """Return the round with whose updates are in the sum, and what these said of theirs.

        `accept`: journals the means.

        Who sent shares that are not genuine is left out of the following attempts, and quorum is then met by
        the others at the latest.

        Raises RoundError when quorum is missed for good, when too few came to the end four times, or when too
        few clients are left. It is an UnsettledError until it is settled whose words the sum holds.
        """
        # these load cryptography, which a federation without keys or masks does without
        from mqtt_broker.aggregator.secagg.attempt import Attempt, Failed
        from mqtt_broker.aggregator.secagg.state import load_held, save_held

        begun = replace(
            begun, cohort=tuple(client_id for client_id in begun.cohort if client_id != SUM), received={}
        )
        base = tasks.brief(begun.cohort[0])
        shapes = {model: {spec.name: spec.shape for spec in specs} for model, specs in base.expected.items()}
        held = load_held(self._path, base.task.session, begun.number, size_of(shapes))
        begun = self._exchange.without_revoked(begun)
        if held is None and len(begun.cohort) < LEAST_CLIENTS:
            raise UnsettledError(
                f"round {begun.number} has {len(begun.cohort)} clients, expected {LEAST_CLIENTS} or more for "
                "a masked sum"
            )
        out: dict[str, Fault] = {}
        failures = 0
        for number in range(1, MOST_ATTEMPTS + 1):
            cohort = tuple(client_id for client_id in begun.cohort if client_id not in out)
            left = replace(begun, cohort=cohort, needed=min(begun.needed, len(cohort)))
            attempt = Attempt(self._exchange, self._trust, self._introduce, left, tasks, shapes)
            try:
                if held is None:
                    held = attempt.gather()
                    save_held(held, self._path)
                if not held.agreed:
                    held = attempt.agree(held)
                    save_held(held, self._path)
                if not held.unmasked:
                    held = attempt.unmask(held)
                    save_held(held, self._path)
                self._keep(held, shapes, base, accept)
                received = {begin.client_id: begin.sha256 for begin in held.begins}
                failed = {
                    **attempt.told.failed,
                    **{client_id: fault.reason for client_id, fault in out.items()},
                }
                closed = replace(attempt.told, cohort=begun.cohort, received=received, failed=failed)
                return closed, list(held.begins)
            except RoundError as error:
                if held is None:
                    raise UnsettledError(str(error)) from error
                raise
            except (Failed, WireError) as error:
                held = None
                self._path.unlink(missing_ok=True)
                named = error.left_out if isinstance(error, Failed) else {}
                out |= named
                failures += not named
                for client_id, fault in sorted(named.items()):
                    self._note(
                        f"{client_id} {fault.reason}; left out of this round's next attempt; {fault.remedy}"
                    )
                if (count := len(set(begun.cohort) - set(out))) < LEAST_CLIENTS:
                    raise UnsettledError(
                        f"round {begun.number}: {error}; {count} clients are left without "
                        f"{', '.join(sorted(out))}, expected {LEAST_CLIENTS} or more; update or revoke "
                        "those, or add clients"
                    ) from error
                if failures == ATTEMPTS or number == MOST_ATTEMPTS:
                    break
                self._note(f"round {begun.number}: {error}; it is played again, with other masks")
        raise UnsettledError(
            f"round {begun.number} came to no sum in {number} attempts; look at the devices' logs, or raise "
            "deadline_s"
        )

    def forget(self) -> None:
        """Remove what is kept of the last round."""
        self._path.unlink(missing_ok=True)

    def _keep(self, held: "Held", shapes: Shapes, base: Brief, accept: Callable[[Begin], None]) -> None:
        if gone := sorted(set(held.shared) - set(held.came)):
            self._note(
                f"round {held.round}: {', '.join(gone)} dropped out; the others' shares took the masks off"
            )
        means = means_of(held.total, shapes, sum(begin.num_samples for begin in held.begins))
        if not means:
            return
        blob = encode_models(means)
        begin = Begin(
            SUM,
            held.session,
            held.round,
            base.task.plan,
            hashlib.sha256(blob).hexdigest(),
            len(blob),
            chunk_count(len(blob)),
            CHUNK_BYTES,
            1,
            {"loss": weighted_loss(held.begins)},
            held.attempt,
            time.time(),
        )
        self._spool.put(begin, {model: base.expected[model] for model in means}, "fp32", blob)
        self._spool.sync()
        accept(begin)
