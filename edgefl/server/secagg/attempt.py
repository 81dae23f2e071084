"""One attempt at a masked round, as the server plays it; see `edgefl.server.secagg.rounds`."""

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

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
from edgefl.server.secagg.masked_sum import MaskedSum
from edgefl.server.tasks import Brief, Expected, Steps, Tasks
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


@dataclass(frozen=True)
class Collect:
    """A request to play one step of a masked round: send the tasks and collect the answers.

    Attributes:
        round: the round of the step.
        steps: makes the task of each client.
        accept: receives the announcements of accepted answers, before their receipts are sent.
    """

    round: Round
    steps: Steps
    accept: Callable[[Sequence[Begin]], None]


@dataclass(frozen=True)
class Services:
    """What masked rounds need from the server around them.

    Attributes:
        trust: signs messages and checks signatures.
        introduce: returns a client's signing key and the authority's voucher for it; None where clients are
            not enrolled.
        offer: offers a blob by its sha256.
        is_gone: returns whether a client was online before and is not now.
        without_revoked: returns a round that waits for enrolled clients only.
        new_nonce: returns a fresh nonce that nobody can guess.
        save: stores what the last two steps need; None removes it.
        load: returns what was stored of a session and a round, given the length of the sum.
        keep_means: stores the means of a round as one update, with the tensors that it may hold.
        now: returns the time in seconds.
        log: receives one line for the log.
    """

    trust: Trust
    introduce: Callable[[str], tuple[str, str]] | None
    offer: Callable[[str, bytes], None]
    is_gone: Callable[[str], bool]
    without_revoked: Callable[[Round], Round]
    new_nonce: Callable[[], str]
    save: Callable[[MaskedSum | None], None]
    load: Callable[[str, int, int], MaskedSum | None]
    keep_means: Callable[[Begin, Expected, bytes], None]
    now: Callable[[], float]
    log: Callable[[str], None]


Step = Generator[Collect, Round, MaskedSum]
"""Yields requests, each answered by the closed round. A RoundError is thrown into it."""


class Failed(Exception):
    """An attempt cannot come to a sum.

    Args:
        message: why.
        left_out: the clients that must not take part in the next attempt, and why.
    """

    def __init__(self, message: str, left_out: Mapping[str, Fault] = {}) -> None:
        super().__init__(message)
        self.left_out = dict(left_out)


class Attempt:
    """One attempt at a round.

    Args:
        services: what the server around it does.
        begun: the round.
        tasks: makes the first task of each client.
        shapes: the shapes of the tensors that are summed.

    Attributes:
        progress: the round with the clients that failed or are away, as far as it got.
    """

    def __init__(self, services: Services, begun: Round, tasks: Tasks, shapes: Shapes) -> None:
        self._services = services
        self._trust = services.trust
        self._tasks = tasks
        self._shapes = shapes
        self._nonce = services.new_nonce()
        self._answered: dict[str, set[str]] = {}
        self._steps = set[str]()
        self.progress = begun

    def gather(self) -> Step:
        """Play the steps up to the masked vectors.

        Raises:
            Failed: the attempt cannot come to a sum.
            RoundError: too few clients have an update to begin with.
        """
        begun = self.progress
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
            introduce = self._services.introduce
            introduction = Introduced(told, *(introduce(client_id) if introduce else ()))
            decode_keys(encode_keys([introduction]))  # a line that the others cannot read would stop them all
            public[client_id] = keys
            introduced[client_id] = introduction
            contexts.add(context)

        needed = max(begun.needed, LEAST_CLIENTS)
        ids, _ = yield from self._collect(begun.cohort, needed, advertised, strict=False)
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
        shared, _ = yield from self._collect(
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
            came, begins = yield from self._collect(
                shared, needed, self._asks(MASK, "inbox", inbox, limit, take_words)
            )
        except Failed as error:
            raise Failed(str(error), left_out(complaints, len(ids) - threshold)) from error
        out = left_out(complaints, len(ids) - threshold)
        # where too few clients would be left for another attempt, those whose words came are enough
        if out and len(set(begun.cohort) - set(out)) >= LEAST_CLIENTS:
            raise Failed(f"{', '.join(sorted(complaints))} could not open all shares", out)
        digests = {each: b"".join(sealed[other][each][:DIGESTS_BYTES] for other in shared) for each in came}
        return MaskedSum(
            begins[0].session, begun.number, self._nonce, binding, public, shared, begins, total, digests
        )

    def agree(self, masked: MaskedSum) -> Step:
        """Play the step in which clients sign the lists of the clients whose vectors came.

        Returns:
            The sum with the lists that as many clients as the threshold signed.

        Raises:
            Failed: too few clients signed.
        """
        self._resume(masked)
        threshold = threshold_of(len(masked.public))
        lists = encode_lists(masked.shared, masked.clients)
        digest = hashlib.sha256(lists).hexdigest()
        agreed: dict[str, Agreed] = {}

        def take_agreed(begin: Begin, blob: bytes) -> None:
            answer = decode_json(Agreed, blob)
            client_id = begin.client_id
            self._trust.checked(answer, encode_json(answer), client_id)  # as the others will read it
            if (answer.client_id, answer.binding, answer.lists) != (client_id, masked.binding, digest):
                raise WireError(f"{client_id} agreed to other lists than it was shown; restart it")
            agreed[client_id] = answer

        asks = self._asks(AGREE, "lists", lambda _: lists, AGREED_BYTES, take_agreed)
        ids, _ = yield from self._collect(masked.clients, threshold, asks, enough=threshold)
        signed = [agreed[client_id] for client_id in ids[:threshold]]
        return replace(masked, agreed=encode_agreed(lists, signed))

    def unmask(self, masked: MaskedSum) -> Step:
        """Play the last step and return the sum without masks.

        A client that reveals a share that was not dealt to it is refused at once. The step goes on until as
        many clients as the threshold revealed theirs.

        Raises:
            Failed: too few clients revealed shares, or the shares do not fit.
        """
        self._resume(masked)
        threshold = threshold_of(len(masked.public))
        came = masked.clients
        revealed: dict[str, Revealed] = {}
        out: dict[str, Fault] = {}

        def take_shares(begin: Begin, blob: bytes) -> None:
            client_id = begin.client_id
            shares = Revealed(*revealed_of(blob, masked.shared, came))
            digests = split_blob(masked.digests[client_id], len(masked.shared), DIGESTS_BYTES)
            try:
                dealt = dict(zip(masked.shared, digests, strict=True))
                check_revealed(client_id, shares, dealt, masked.binding)
            except NotGenuine as error:
                out[client_id] = Fault("revealed a share that does not fit")
                raise WireError(f"{error}; it is not used; update or revoke {client_id}") from error
            revealed[client_id] = shares

        asks = self._asks(
            UNMASK, "agreed", lambda _: masked.agreed, SHARE_BYTES * len(masked.shared), take_shares
        )
        try:
            answered, _ = yield from self._collect(came, threshold, asks, enough=threshold)
            answers = {client_id: revealed[client_id] for client_id in answered}
            total = unmask(
                masked.total, masked.public, masked.shared, came, answers, threshold, masked.binding
            )
        except NotGenuine as error:
            raise Failed(
                str(error),
                out | dict.fromkeys(error.client_ids, Fault("dealt shares that do not give its key")),
            ) from error
        except (Failed, RoundError) as error:
            raise Failed(str(error), out) from error
        return replace(masked, total=total, is_unmasked=True)

    def _resume(self, masked: MaskedSum) -> None:
        """Go on with the attempt of this sum. An earlier process may have begun it."""
        self._nonce = masked.attempt
        self._answered = {begin.client_id: {begin.sha256} for begin in masked.begins} | self._answered

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
            self._services.offer(sha256, blob)
            task = replace(
                first.task,
                phase=step,
                models={name: sha256},
                scalars={},
                codec=CODEC,
                nonce=step_nonce(self._nonce, step),
            )
            return Brief(task, first.expected, limit, whole, frozenset(self._answered.get(client_id, ())))

        def whole(begin: Begin, blob: bytes) -> None:
            if not blob:
                raise WireError(f"{begin.client_id} cannot {step}: its log says why")
            take(begin, blob)

        return brief

    def _collect(
        self,
        cohort: Sequence[str],
        needed: int,
        brief: Callable[[str], Brief],
        *,
        enough: int = 0,
        strict: bool = True,
    ) -> Generator[Collect, Round, tuple[tuple[str, ...], tuple[Begin, ...]]]:
        """Play one step. Return the clients that answered, sorted, and their announcements.

        Raises:
            Failed: with `strict`, fewer clients than needed answered until the deadline.
        """
        begun = self.progress
        begins = dict[str, Begin]()

        def accepted(answers: Sequence[Begin]) -> None:
            for begin in answers:
                begins[begin.client_id] = begin
                self._answered.setdefault(begin.client_id, set()).add(begin.sha256)

        opened = rounds.open_round(
            begun.number,
            cohort,
            quorum=1.0,
            deadline_s=begun.deadline_s,
            grace_s=begun.grace_s,
            now=self._services.now(),
            enough=enough,
        )
        opened = replace(opened, needed=needed, extensions=rounds.MAX_EXTENSIONS if strict else 0)
        for client_id in cohort:
            if self._services.is_gone(client_id):
                opened = rounds.offline(opened, client_id, opened.opened)
        nonce = brief(cohort[0]).task.nonce
        steps = Steps({begun.number: nonce}, brief, frozenset(self._steps - {nonce}))
        self._steps.add(nonce)
        try:
            closed = yield Collect(opened, steps, accepted)
        except RoundError as error:
            if not strict:
                raise
            gone = ", ".join(client_id for client_id in opened.cohort if client_id not in begins)
            step = steps.brief(cohort[0]).task.phase
            raise Failed(
                f"{len(begins)} of {len(cohort)} clients answered to {step}, expected {needed}, without "
                f"{gone}"
            ) from error
        self.progress = replace(
            begun, failed={**begun.failed, **closed.failed}, away={**begun.away, **closed.away}
        )
        return tuple(sorted(closed.received)), tuple(
            begins[client_id] for client_id in sorted(closed.received)
        )
