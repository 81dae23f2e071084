"""One attempt at a masked round, as the aggregator plays it; see `rounds`."""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgefl.errors import ConfigError, RoundError, WireError
from edgefl.security.secagg.disputes import Fault, left_out
from edgefl.security.secagg.masking import LEAST_CLIENTS, Words, threshold_of
from edgefl.security.secagg.participant import keys_of, revealed_of
from edgefl.security.secagg.secure_sum import NotGenuine, PublicKeys, Revealed, check_revealed, unmask
from edgefl.security.secagg.vectors import Shapes, size_of
from edgefl.security.trust import Trust
from edgefl.server import rounds
from edgefl.server.rounds import Round
from edgefl.server.tasks import Brief, Steps, Tasks
from edgefl.wire.masked import (
    ADVERTISED_BYTES,
    AGREE,
    AGREED_BYTES,
    CODEC,
    DIGESTS_BYTES,
    MASK,
    SEALED_BYTES,
    SHARE,
    SHARE_BYTES,
    UNMASK,
    Advertised,
    Agreed,
    Introduced,
    binding_of,
    context_of,
    decode_complaint,
    decode_keys,
    encode_agreed,
    encode_complaint,
    encode_inbox,
    encode_keys,
    encode_lists,
    split_blob,
    step_nonce,
)
from edgefl.wire.messages import Begin
from edgefl.wire.strict_json import decode_json, encode_json
from mqtt_broker.aggregator.exchange import Exchange
from mqtt_broker.aggregator.secagg.state import Held


class Failed(Exception):
    """An attempt that cannot come to a sum, and why. left_out: who must not take part in the next attempt,
    and why.
    """

    def __init__(self, message: str, left_out: Mapping[str, Fault] = {}) -> None:
        super().__init__(message)
        self.left_out = dict(left_out)


class Attempt:
    """One attempt at a round. `told`: the round with who failed or is away, as far as it got."""

    def __init__(
        self,
        exchange: Exchange,
        trust: Trust,
        introduce: Callable[[str], tuple[str, str]] | None,
        begun: Round,
        tasks: Tasks,
        shapes: Shapes,
    ) -> None:
        self._exchange = exchange
        self._trust = trust
        self._introduce = introduce
        self._tasks = tasks
        self._shapes = shapes
        self._nonce = secrets.token_hex(8)
        self._said: dict[str, set[str]] = {}
        self._steps = set[str]()
        self.told = begun

    def gather(self) -> Held:
        """Play the exchanges up to the masked words.

        Failed; RoundError when too few have an update to begin with.
        """
        begun = self.told
        introduced = dict[str, Introduced]()
        public = dict[str, PublicKeys]()
        contexts = set[str]()

        def advertised(client_id: str) -> Brief:
            brief = self._tasks.brief(client_id)
            task = replace(brief.task, codec=CODEC, nonce=step_nonce(self._nonce, "advertise"))
            return Brief(task, brief.expected, ADVERTISED_BYTES, take_keys)

        def take_keys(begin: Begin, blob: bytes) -> None:
            if not blob:
                raise WireError(f"{begin.client_id} cannot advertise keys: its log says why")
            told = decode_json(Advertised, blob)
            client_id = begin.client_id
            self._trust.checked(told, encode_json(told), client_id)  # as the others will read it
            context = context_of(self._trust.federation, advertised(client_id).task)
            if (told.client_id, told.context) != (client_id, context):
                raise WireError(
                    f"{client_id} advertised keys of {told.client_id!r}, or for another round; restart it"
                )
            keys = keys_of(told)
            introduction = Introduced(told, *(self._introduce(client_id) if self._introduce else ()))
            decode_keys(encode_keys([introduction]))  # a line that the others cannot read would stop them all
            public[client_id] = keys
            introduced[client_id] = introduction
            contexts.add(context)

        needed = max(begun.needed, LEAST_CLIENTS)
        ids, _ = self._exchange_of(begun.cohort, needed, advertised, strict=False)
        if len(contexts) > 1:
            raise ConfigError(
                "secure_aggregation needs an algorithm that sends all clients of a round the same; take "
                "fedavg, say"
            )
        public = {client_id: public[client_id] for client_id in ids}
        threshold = threshold_of(len(ids))
        needed = max(begun.needed, threshold)
        sealed: dict[str, dict[str, bytes]] = {}

        def take_shares(begin: Begin, blob: bytes) -> None:
            sealed[begin.client_id] = dict(zip(ids, split_blob(blob, len(ids), SEALED_BYTES), strict=True))

        keys = encode_keys([introduced[client_id] for client_id in ids])
        binding = binding_of(contexts.pop(), keys)
        shared, _ = self._exchange_of(
            ids, needed, self._asks(SHARE, "keys", lambda _: keys, SEALED_BYTES * len(ids), take_shares)
        )
        total: Words = np.zeros(size_of(self._shapes), np.uint64)

        complaints: dict[str, tuple[str, ...]] = {}

        def take_words(begin: Begin, blob: bytes) -> None:
            if accused := decode_complaint(blob):
                if not set(accused) <= set(shared):
                    raise WireError(
                        f"{begin.client_id} accuses {' '.join(accused)[:100]}, expected clients of its "
                        "inbox; update it"
                    )
                complaints[begin.client_id] = accused
                raise WireError(
                    f"{begin.client_id} cannot open what {', '.join(accused)} sealed for it; it sent no words"
                )
            if len(blob) != total.nbytes:
                raise WireError(
                    f"{begin.client_id} sent {len(blob)} bytes of masked words, expected {total.nbytes}; "
                    "restart it"
                )
            np.add(total, np.frombuffer(blob, "<u8"), out=total)

        def inbox(client_id: str) -> bytes:
            return encode_inbox({other: sealed[other][client_id] for other in shared})

        limit = max(total.nbytes, len(encode_complaint(shared)))
        try:
            came, begins = self._exchange_of(
                shared, needed, self._asks(MASK, "inbox", inbox, limit, take_words)
            )
        except Failed as error:
            raise Failed(str(error), left_out(complaints, len(ids) - threshold)) from error
        out = left_out(complaints, len(ids) - threshold)
        # where too few clients would be left for another attempt, those whose words came are enough
        if out and len(set(begun.cohort) - set(out)) >= LEAST_CLIENTS:
            raise Failed(f"{', '.join(sorted(complaints))} could not open all shares", out)
        digests = {each: b"".join(sealed[other][each][:DIGESTS_BYTES] for other in shared) for each in came}
        return Held(
            begins[0].session, begun.number, self._nonce, binding, public, shared, begins, total, digests
        )

    def agree(self, held: Held) -> Held:
        """Play the exchange in which clients sign whose words came.

        Return what as many as the threshold signed. Failed.
        """
        self._resume(held)
        threshold = threshold_of(len(held.public))
        lists = encode_lists(held.shared, held.came)
        digest = hashlib.sha256(lists).hexdigest()
        agreed: dict[str, Agreed] = {}

        def take_agreed(begin: Begin, blob: bytes) -> None:
            answer = decode_json(Agreed, blob)
            client_id = begin.client_id
            self._trust.checked(answer, encode_json(answer), client_id)  # as the others will read it
            if (answer.client_id, answer.binding, answer.lists) != (client_id, held.binding, digest):
                raise WireError(f"{client_id} agreed to other lists than it was shown; restart it")
            agreed[client_id] = answer

        asks = self._asks(AGREE, "lists", lambda _: lists, AGREED_BYTES, take_agreed)
        ids, _ = self._exchange_of(held.came, threshold, asks, enough=threshold)
        return replace(
            held, agreed=encode_agreed(lists, [agreed[client_id] for client_id in ids[:threshold]])
        )

    def unmask(self, held: Held) -> Held:
        """Play the last exchange and return the sum. Failed.

        A client that reveals a share that was not dealt to it is refused at once; the exchange goes on until
        as many as the threshold revealed theirs.
        """
        self._resume(held)
        threshold = threshold_of(len(held.public))
        came = held.came
        revealed: dict[str, Revealed] = {}
        out: dict[str, Fault] = {}

        def take_shares(begin: Begin, blob: bytes) -> None:
            client_id = begin.client_id
            shares = Revealed(*revealed_of(blob, held.shared, came))
            digests = split_blob(held.digests[client_id], len(held.shared), DIGESTS_BYTES)
            try:
                check_revealed(client_id, shares, dict(zip(held.shared, digests, strict=True)), held.binding)
            except NotGenuine as error:
                out[client_id] = Fault("revealed a share that does not fit")
                raise WireError(f"{error}; it is not used; update or revoke {client_id}") from error
            revealed[client_id] = shares

        asks = self._asks(
            UNMASK, "agreed", lambda _: held.agreed, SHARE_BYTES * len(held.shared), take_shares
        )
        try:
            answered, _ = self._exchange_of(came, threshold, asks, enough=threshold)
            answers = {client_id: revealed[client_id] for client_id in answered}
            total = unmask(held.total, held.public, held.shared, came, answers, threshold, held.binding)
        except NotGenuine as error:
            raise Failed(
                str(error),
                out | dict.fromkeys(error.client_ids, Fault("dealt shares that do not give its key")),
            ) from error
        except (Failed, RoundError) as error:
            raise Failed(str(error), out) from error
        return replace(held, total=total, unmasked=True)

    def _resume(self, held: Held) -> None:
        """Go on with the attempt of these words, which may be one of the process before this one."""
        self._nonce = held.attempt
        self._said = {begin.client_id: {begin.sha256} for begin in held.begins} | self._said

    def _asks(
        self,
        step: str,
        name: str,
        content: Callable[[str], bytes],
        limit: int,
        take: Callable[[Begin, bytes], None],
    ) -> Callable[[str], Brief]:
        def brief(client_id: str) -> Brief:
            blob = content(client_id)
            first = self._tasks.brief(client_id)
            sha256 = hashlib.sha256(blob).hexdigest()
            self._exchange.blobs.offer(sha256, blob)
            task = replace(
                first.task,
                phase=step,
                models={name: sha256},
                scalars={},
                codec=CODEC,
                nonce=step_nonce(self._nonce, step),
                ts=time.time(),
            )
            return Brief(task, first.expected, limit, whole, frozenset(self._said.get(client_id, ())))

        def whole(begin: Begin, blob: bytes) -> None:
            if not blob:
                raise WireError(f"{begin.client_id} cannot {step}: its log says why")
            take(begin, blob)

        return brief

    def _exchange_of(
        self,
        cohort: Sequence[str],
        needed: int,
        brief: Callable[[str], Brief],
        *,
        enough: int = 0,
        strict: bool = True,
    ) -> tuple[tuple[str, ...], tuple[Begin, ...]]:
        """Return who answered, sorted, and with what.

        Failed, if `strict`, when fewer than needed did until the deadline.
        """
        begun = self.told
        now = time.monotonic()
        begins = dict[str, Begin]()

        def accepted(answers: Sequence[Begin]) -> None:
            for begin in answers:
                begins[begin.client_id] = begin
                self._said.setdefault(begin.client_id, set()).add(begin.sha256)

        opened = rounds.open_round(
            begun.number,
            cohort,
            quorum=1.0,
            deadline_s=begun.deadline_s,
            grace_s=begun.grace_s,
            now=now,
            enough=enough,
        )
        opened = replace(opened, needed=needed, extensions=rounds.MAX_EXTENSIONS if strict else 0)
        for client_id in cohort:
            if self._exchange.presence.is_gone(client_id):
                opened = rounds.offline(opened, client_id, now)
        nonce = brief(cohort[0]).task.nonce
        steps = Steps({begun.number: nonce}, brief, frozenset(self._steps - {nonce}))
        self._steps.add(nonce)
        try:
            closed = self._exchange.play(opened, steps, accepted)
        except RoundError as error:
            if not strict:
                raise
            found = self._exchange.round
            gone = ", ".join(rounds.missing(found)) if found else "all"
            step = steps.brief(cohort[0]).task.phase
            raise Failed(
                f"{len(begins)} of {len(cohort)} clients answered to {step}, expected {needed}, without "
                f"{gone}"
            ) from error
        self.told = replace(
            begun, failed={**begun.failed, **closed.failed}, away={**begun.away, **closed.away}
        )
        return tuple(sorted(closed.received)), tuple(
            begins[client_id] for client_id in sorted(closed.received)
        )
