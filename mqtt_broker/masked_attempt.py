"""One attempt at a masked round, as the aggregator plays it; see `masked_rounds`."""

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from edgefl import rounds
from edgefl.errors import ConfigError, RoundError, WireError
from edgefl.rounds import Round
from edgefl.security.masking import LEAST_CLIENTS, Words
from edgefl.security.participant import keys_of, revealed_of
from edgefl.security.secure_sum import PublicKeys, Revealed, unmask
from edgefl.security.summing import threshold_of
from edgefl.security.trust import Trust
from edgefl.security.vectors import Shapes, size_of
from edgefl.wire.masked import (
    ADVERTISED_BYTES,
    CODEC,
    MASK,
    SEALED_BYTES,
    SHARE,
    SHARE_BYTES,
    UNMASK,
    Advertised,
    Introduced,
    context_of,
    encode_ids,
    encode_inbox,
    encode_keys,
    split_blob,
    step_nonce,
)  # fmt: skip
from edgefl.wire.messages import Begin
from edgefl.wire.strict_json import decode_json, encode_json
from mqtt_broker.exchange import Exchange
from mqtt_broker.masked_state import Held
from mqtt_broker.tasks import Brief, Steps, Tasks


class Failed(Exception):
    """An attempt that cannot come to a sum, and why."""


class Attempt:
    """One attempt at a round. `told`: the round with who failed or is away, as far as it got."""

    def __init__(
        self, exchange: Exchange, trust: Trust, introduce: Callable[[str], tuple[str, str]] | None, begun: Round, tasks: Tasks,
        shapes: Shapes,
    ) -> None:  # fmt: skip
        self._exchange, self._trust, self._introduce, self._tasks, self._shapes = exchange, trust, introduce, tasks, shapes
        self._nonce = secrets.token_hex(8)
        self._said: dict[str, set[str]] = {}
        self.told = begun

    def gather(self) -> Held:
        """Play the exchanges up to the masked words. Failed; RoundError when too few have an update to begin with."""
        begun, introduced = self.told, dict[str, Introduced]()
        public, contexts = dict[str, PublicKeys](), set[str]()

        def advertised(client_id: str) -> Brief:
            brief = self._tasks.brief(client_id)
            task = replace(brief.task, codec=CODEC, nonce=step_nonce(self._nonce, "advertise"))
            return Brief(task, brief.expected, ADVERTISED_BYTES, take_keys)

        def take_keys(begin: Begin, blob: bytes) -> None:
            told, client_id = decode_json(Advertised, blob), begin.client_id
            self._trust.checked(told, encode_json(told), client_id)  # as the others will read it
            context = context_of(self._trust.federation, advertised(client_id).task)
            if (told.client_id, told.context) != (client_id, context):
                raise WireError(f"{client_id} advertised keys of {told.client_id!r}, or for another round; restart it")
            public[client_id] = keys_of(told)
            contexts.add(context)
            introduced[client_id] = Introduced(told, *(self._introduce(client_id) if self._introduce else ()))

        needed = max(begun.needed, LEAST_CLIENTS)
        ids, _ = self._exchange_of(begun.cohort, needed, advertised, strict=False)
        if len(contexts) > 1:
            raise ConfigError("secure_aggregation needs an algorithm that sends all clients of a round the same; take fedavg, say")
        public = {client_id: public[client_id] for client_id in ids}
        needed = max(begun.needed, threshold_of(len(ids)))
        sealed: dict[str, dict[str, bytes]] = {}

        def take_shares(begin: Begin, blob: bytes) -> None:
            sealed[begin.client_id] = dict(zip(ids, split_blob(blob, len(ids), SEALED_BYTES), strict=True))

        keys = encode_keys([introduced[client_id] for client_id in ids])
        shared, _ = self._exchange_of(ids, needed, self._asks(SHARE, "keys", lambda _: keys, SEALED_BYTES * len(ids), take_shares))
        total: Words = np.zeros(size_of(self._shapes), np.uint64)

        def take_words(begin: Begin, blob: bytes) -> None:
            if len(blob) != total.nbytes:
                raise WireError(f"{begin.client_id} sent {len(blob)} bytes of masked words, expected {total.nbytes}; restart it")
            np.add(total, np.frombuffer(blob, "<u8"), out=total)

        def inbox(client_id: str) -> bytes:
            return encode_inbox({other: sealed[other][client_id] for other in shared})

        _, begins = self._exchange_of(shared, needed, self._asks(MASK, "inbox", inbox, total.nbytes, take_words))
        session = begins[0].session
        return Held(session, begun.number, self._nonce, contexts.pop(), public, shared, begins, total)

    def unmask(self, held: Held) -> Held:
        """Play the last exchange and return the sum. Failed."""
        self._nonce, threshold, came = held.attempt, threshold_of(len(held.public)), held.came
        self._said = {begin.client_id: {begin.sha256} for begin in held.begins} | self._said
        revealed: dict[str, Revealed] = {}

        def take_shares(begin: Begin, blob: bytes) -> None:
            revealed[begin.client_id] = Revealed(*revealed_of(blob, held.shared, came))

        asks = self._asks(UNMASK, "came", lambda _: encode_ids(came), SHARE_BYTES * len(held.shared), take_shares)
        told, _ = self._exchange_of(came, threshold, asks, enough=threshold)
        try:
            answers = {client_id: revealed[client_id] for client_id in told}
            total = unmask(held.total, held.public, held.shared, came, answers, threshold, held.context)
        except (RoundError, ValueError) as error:
            raise Failed(str(error)) from error
        return replace(held, total=total, unmasked=True)

    def _asks(
        self, step: str, name: str, content: Callable[[str], bytes], limit: int, take: Callable[[Begin, bytes], None]
    ) -> Callable[[str], Brief]:
        def brief(client_id: str) -> Brief:
            blob, first = content(client_id), self._tasks.brief(client_id)
            sha256 = hashlib.sha256(blob).hexdigest()
            self._exchange.blobs.offer(sha256, blob)
            task = replace(
                first.task, phase=step, models={name: sha256}, scalars={}, codec=CODEC, nonce=step_nonce(self._nonce, step), ts=time.time()
            )
            return Brief(task, first.expected, limit, whole, frozenset(self._said.get(client_id, ())))

        def whole(begin: Begin, blob: bytes) -> None:
            if not blob:
                raise WireError(f"{begin.client_id} cannot {step}: its log says why")
            take(begin, blob)

        return brief

    def _exchange_of(
        self, cohort: Sequence[str], needed: int, brief: Callable[[str], Brief], *, enough: int = 0, strict: bool = True
    ) -> tuple[tuple[str, ...], tuple[Begin, ...]]:
        """Return who answered, sorted, and with what; Failed, if `strict`, when fewer than needed did until the deadline."""
        begun, now, begins = self.told, time.monotonic(), dict[str, Begin]()

        def accepted(answers: Sequence[Begin]) -> None:
            for begin in answers:
                begins[begin.client_id] = begin
                self._said.setdefault(begin.client_id, set()).add(begin.sha256)

        opened = rounds.open_round(
            begun.number, cohort, quorum=1.0, deadline_s=begun.deadline_s, grace_s=begun.grace_s, now=now, enough=enough
        )  # fmt: skip
        opened = replace(opened, needed=needed, extensions=rounds.MAX_EXTENSIONS if strict else 0)
        for client_id in cohort:
            if self._exchange.presence.is_gone(client_id):
                opened = rounds.offline(opened, client_id, now)
        steps = Steps({begun.number: brief(cohort[0]).task.nonce}, brief)
        try:
            closed = self._exchange.play(opened, steps, accepted)
        except RoundError as error:
            if not strict:
                raise
            found = self._exchange.round
            gone = ", ".join(rounds.missing(found)) if found else "all"
            step = steps.brief(cohort[0]).task.phase
            raise Failed(f"{len(begins)} of {len(cohort)} clients answered to {step}, expected {needed}, without {gone}") from error
        self.told = replace(begun, failed={**begun.failed, **closed.failed}, away={**begun.away, **closed.away})
        return tuple(sorted(closed.received)), tuple(begins[client_id] for client_id in sorted(closed.received))
