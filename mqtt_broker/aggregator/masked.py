"""Plays masked rounds on an exchange, and keeps their sums in a file."""

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.errors import RoundError, StateError
from edgefl.security.trust import Trust
from edgefl.server.rounds import Round
from edgefl.server.tasks import Expected, Tasks
from edgefl.storage.aggregator_directory import REMEDY, AggregatorFiles
from edgefl.system.files import SECRET, write_state
from edgefl.wire.messages import Begin
from mqtt_broker.aggregator.exchange import Exchange
from mqtt_broker.aggregator.spool import Spool

if TYPE_CHECKING:
    from edgefl.server.secagg.masked_sum import MaskedSum

Accept = Callable[[Begin], None]


class MaskedExchange:
    """Plays masked rounds on an exchange.

    Args:
        exchange: sends the tasks and receives the answers.
        spool: stores the means of a round.
        trust: signs messages and checks signatures.
        introduce: returns a client's signing key and the authority's voucher for it; None where clients are
            not enrolled.
        directory: the aggregator's directory.
        note: receives one line for the log.
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

    def play(self, begun: Round, tasks: Tasks, accept: Accept) -> tuple[Round, list[Begin]]:
        """Play a round, see `MaskedRounds.play`. `accept` journals the update with its means."""
        # These load cryptography, which a federation without keys or masks does without
        from edgefl.server.secagg.attempt import Services
        from edgefl.server.secagg.rounds import MaskedRounds

        def keep_means(begin: Begin, expected: Expected, blob: bytes) -> None:
            begin = replace(begin, ts=time.time())
            self._spool.put(begin, expected, "fp32", blob)
            self._spool.sync()
            accept(begin)

        services = Services(
            self._trust,
            self._introduce,
            self._exchange.blobs.offer,
            self._exchange.presence.is_gone,
            self._exchange.without_revoked,
            lambda: secrets.token_hex(8),
            self._save,
            self._load,
            keep_means,
            time.monotonic,
            self._note,
        )
        course = MaskedRounds(services).play(begun, tasks)
        try:
            request = next(course)
            while True:
                try:
                    closed = self._exchange.play(request.round, request.steps, request.accept)
                except RoundError as error:
                    request = course.throw(error)
                else:
                    request = course.send(closed)
        except StopIteration as end:
            result: tuple[Round, list[Begin]] = end.value
            return result

    def forget(self) -> None:
        """Remove what is kept of the last round."""
        self._path.unlink(missing_ok=True)

    def _save(self, masked_sum: "MaskedSum | None") -> None:
        from edgefl.server.secagg.masked_sum import encode_masked_sum

        if masked_sum is None:
            self.forget()
        else:
            write_state(self._path, encode_masked_sum(masked_sum), SECRET, REMEDY)

    def _load(self, session: str, number: int, size: int) -> "MaskedSum | None":
        from edgefl.server.secagg.masked_sum import decode_masked_sum

        with suppress(FileNotFoundError):
            try:
                return decode_masked_sum(self._path.read_bytes(), session, number, size)
            except StateError as error:
                raise StateError(f"{self._path}: {error}") from error
            except FileNotFoundError:
                raise
            except OSError as error:
                raise StateError(f"cannot read {self._path}: {error}; begin anew with --fresh") from error
        return None
