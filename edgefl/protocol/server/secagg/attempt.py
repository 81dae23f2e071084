"""The server's part of one attempt at a masked round. See `edgefl.protocol.server.secagg.rounds`."""

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgefl.base.errors import ConfigError, RoundError, WireError
from edgefl.protocol.security.secagg.complaints import Fault, find_excluded
from edgefl.protocol.security.secagg.masking import MIN_MASKED_CLIENTS, FixedPointVector, choose_threshold
from edgefl.protocol.security.secagg.participant import decode_revealed, from_advertised
from edgefl.protocol.security.secagg.secure_sum import (
    InvalidShareError,
    PublicKeys,
    RevealedShares,
    check_revealed,
    unmask_sum,
)
from edgefl.protocol.security.secagg.vectors import Shapes, measure_vector
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.server import rounds
from edgefl.protocol.server.rounds import Round
from edgefl.protocol.server.secagg.masked_sum import MaskedSum
from edgefl.protocol.server.tasks import ClientTask, ExpectedTensors, RoundTasks, StepTasks
from edgefl.protocol.wire.masked import (
    ADVERTISED_BYTES,
    AGREE_STEP,
    AGREED_BYTES,
    DIGESTS_BYTES,
    MASK_STEP,
    MASKED_CODEC,
    SEALED_BYTES,
    SHARE_BYTES,
    SHARE_STEP,
    UNMASK_STEP,
    Advertised,
    Agreed,
    Introduced,
    decode_complaint,
    decode_keys,
    encode_agreed,
    encode_complaint,
    encode_inbox,
    encode_keys,
    encode_lists,
    hash_binding,
    hash_context,
    make_step_nonce,
    split_blob,
)
from edgefl.protocol.wire.messages import Begin
from edgefl.protocol.wire.strict_json import decode_json, encode_json


@dataclass(frozen=True)
class CollectRequest:
    """A request to play one step of a masked round: send the tasks and collect the answers.

    Attributes:
        round: the round of the step.
        steps: makes the task of each client.
        accept: receives the announcements of accepted answers, before their receipts are sent.
    """

    round: Round
    steps: StepTasks
    accept: Callable[[Sequence[Begin]], None]


@dataclass(frozen=True)
class SecAggServices:
    """The functions that masked rounds need from the server.

    Attributes:
        trust: signs messages and checks signatures.
        introduce: returns a client's signing key and the authority's voucher for it, or None without
            enrolment.
        offer: offers a blob by its sha256.
        is_gone: returns whether a client was online before and is not now.
        remove_excluded: returns a round that waits for enrolled clients only.
        new_nonce: returns a fresh nonce that cannot be guessed.
        save: stores the sum that the last two steps need. None removes the stored sum.
        load: returns the stored sum of a session and a round, or None if there is no such sum. Its third
            argument is the number of elements of the sum.
        keep_means: stores the means of a round as one update, with the tensors that it may contain.
        now: returns the time in seconds.
        log: receives one line for the log.
    """

    trust: Trust
    introduce: Callable[[str], tuple[str, str]] | None
    offer: Callable[[str, bytes], None]
    is_gone: Callable[[str], bool]
    remove_excluded: Callable[[Round], Round]
    new_nonce: Callable[[], str]
    save: Callable[[MaskedSum | None], None]
    load: Callable[[str, int, int], MaskedSum | None]
    keep_means: Callable[[Begin, ExpectedTensors, bytes], None]
    now: Callable[[], float]
    log: Callable[[str], None]


StepGenerator = Generator[CollectRequest, Round, MaskedSum]
"""Yields requests, receives the closed round of each request, and returns the sum. If a round cannot close,
the caller throws the RoundError into the generator.
"""


class AttemptError(Exception):
    """An attempt that cannot produce a sum.

    Args:
        message: the reason.
        excluded: the clients that must not take part in the next attempt, and why.
    """

    def __init__(self, message: str, excluded: Mapping[str, Fault] = {}) -> None:
        super().__init__(message)
        self.excluded = dict(excluded)


class SecAggAttempt:
    """One attempt at a masked round. It begins with new keys and ends with the sum of the updates.

    Call `gather_vectors`, `agree_on_lists` and `unmask` in this order, each with the sum of the step before.
    After a restart, a new attempt continues with the stored sum.

    Args:
        services: the functions of the server that the attempt needs.
        tasks: makes the first task of each client.
        shapes: shape of each weight in the sum, by model name.

    Attributes:
        round_so_far: the round, with the clients that failed or went away in the steps so far.
    """

    def __init__(self, services: SecAggServices, begun: Round, tasks: RoundTasks, shapes: Shapes) -> None:
        self._services = services
        self._trust = services.trust
        self._tasks = tasks
        self._shapes = shapes
        self._nonce = services.new_nonce()
        self._answered: dict[str, set[str]] = {}
        self._step_nonces = set[str]()
        self.round_so_far = begun

    def gather_vectors(self) -> StepGenerator:
        """Play the steps `advertise`, `share` and `mask`.

        Returns:
            The sum of the masked vectors that arrived.

        Raises:
            AttemptError: too few clients answered a step, or clients complained about sealed shares.
            RoundError: too few clients advertised keys, which they do when they have an update.
            ConfigError: the tasks of the clients differ in models, scalars or seed.
        """
        begun = self.round_so_far
        introduced = dict[str, Introduced]()
        public = dict[str, PublicKeys]()
        contexts = set[str]()

        def prepare_advertisement(client_id: str) -> ClientTask:
            client_task = self._tasks.prepare(client_id)
            task = replace(
                client_task.task, codec=MASKED_CODEC, nonce=make_step_nonce(self._nonce, "advertise")
            )
            return ClientTask(
                task=task, expected=client_task.expected, limit=ADVERTISED_BYTES, read_answer=read_keys
            )

        def read_keys(begin: Begin, blob: bytes) -> None:
            if not blob:
                raise WireError(f"{begin.client_id} cannot advertise keys; look at its log for the reason")
            advertisement = decode_json(Advertised, blob)
            client_id = begin.client_id
            # Encoded again, because the other clients receive this encoding
            self._trust.check(advertisement, encode_json(advertisement), client_id)
            context = hash_context(self._trust.federation, prepare_advertisement(client_id).task)
            if (advertisement.client_id, advertisement.context) != (client_id, context):
                raise WireError(
                    f"{client_id} advertised keys of {advertisement.client_id!r} or for another round, "
                    f"expected its keys for this round; restart {client_id}"
                )
            keys = from_advertised(advertisement)
            introduce = self._services.introduce
            introduction = Introduced(advertisement, *(introduce(client_id) if introduce else ()))
            decode_keys(encode_keys([introduction]))  # An unreadable line would stop all other clients
            public[client_id] = keys
            introduced[client_id] = introduction
            contexts.add(context)

        needed = max(begun.needed, MIN_MASKED_CLIENTS)
        ids, _ = yield from self._collect(begun.cohort, needed, prepare_advertisement, strict=False)
        if len(contexts) > 1:
            raise ConfigError(
                "the clients of a round receive different models, scalars or seeds, expected the same for "
                "secure_aggregation; use another algorithm, such as fedavg"
            )
        public = {client_id: public[client_id] for client_id in ids}
        threshold = choose_threshold(len(ids))
        needed = max(begun.needed, threshold)
        sealed: dict[str, dict[str, bytes]] = {}

        def read_shares(begin: Begin, blob: bytes) -> None:
            sealed[begin.client_id] = dict(zip(ids, split_blob(blob, len(ids), SEALED_BYTES), strict=True))

        keys = encode_keys([introduced[client_id] for client_id in ids])
        binding = hash_binding(contexts.pop(), keys)
        shared, _ = yield from self._collect(
            ids,
            needed,
            self._prepare_step(SHARE_STEP, "keys", lambda _: keys, SEALED_BYTES * len(ids), read_shares),
        )
        total: FixedPointVector = np.zeros(measure_vector(self._shapes), np.uint64)

        complaints: dict[str, tuple[str, ...]] = {}

        def add_vector(begin: Begin, blob: bytes) -> None:
            if accused := decode_complaint(blob):
                if not set(accused) <= set(shared):
                    raise WireError(
                        f"{begin.client_id} accuses {' '.join(accused)[:100]}, expected clients of its "
                        f"inbox; update {begin.client_id}"
                    )
                complaints[begin.client_id] = accused
                raise WireError(
                    f"{begin.client_id} cannot open the shares that {', '.join(accused)} sealed for it and "
                    "sent no masked vector; look at their logs"
                )
            if len(blob) != total.nbytes:
                raise WireError(
                    f"{begin.client_id} sent a masked vector of {len(blob)} bytes, expected {total.nbytes} "
                    f"bytes; restart {begin.client_id}"
                )
            np.add(total, np.frombuffer(blob, "<u8"), out=total)

        def make_inbox(client_id: str) -> bytes:
            return encode_inbox({other: sealed[other][client_id] for other in shared})

        limit = max(total.nbytes, len(encode_complaint(shared)))
        try:
            survivors, begins = yield from self._collect(
                shared, needed, self._prepare_step(MASK_STEP, "inbox", make_inbox, limit, add_vector)
            )
        except AttemptError as error:
            raise AttemptError(str(error), find_excluded(complaints, len(ids) - threshold)) from error
        excluded = find_excluded(complaints, len(ids) - threshold)
        # Without enough clients for another attempt, this attempt continues with the vectors that arrived
        if excluded and len(set(begun.cohort) - set(excluded)) >= MIN_MASKED_CLIENTS:
            raise AttemptError(f"{', '.join(sorted(complaints))} could not open all sealed shares", excluded)
        digests = {
            recipient: b"".join(sealed[other][recipient][:DIGESTS_BYTES] for other in shared)
            for recipient in survivors
        }
        return MaskedSum(
            session=begins[0].session,
            round=begun.number,
            attempt=self._nonce,
            binding=binding,
            public=public,
            shared=shared,
            begins=begins,
            total=total,
            digests=digests,
        )

    def agree_on_lists(self, masked: MaskedSum) -> StepGenerator:
        """Play the step `agree`: clients sign the lists of clients that shared, and whose vectors arrived.

        Args:
            masked: the sum of `gather_vectors`.

        Returns:
            The sum, with the lists and their signatures in `agreed`.

        Raises:
            AttemptError: fewer clients than the threshold signed.
        """
        self._resume(masked)
        threshold = choose_threshold(len(masked.public))
        lists = encode_lists(masked.shared, masked.clients)
        digest = hashlib.sha256(lists).hexdigest()
        agreed: dict[str, Agreed] = {}

        def read_agreement(begin: Begin, blob: bytes) -> None:
            answer = decode_json(Agreed, blob)
            client_id = begin.client_id
            # Encoded again, because the other clients receive this encoding
            self._trust.check(answer, encode_json(answer), client_id)
            if (answer.client_id, answer.binding, answer.lists) != (client_id, masked.binding, digest):
                raise WireError(f"{client_id} agreed to other lists than it received; restart {client_id}")
            agreed[client_id] = answer

        prepare_task = self._prepare_step(AGREE_STEP, "lists", lambda _: lists, AGREED_BYTES, read_agreement)
        ids, _ = yield from self._collect(masked.clients, threshold, prepare_task, enough=threshold)
        signed = [agreed[client_id] for client_id in ids[:threshold]]
        return replace(masked, agreed=encode_agreed(lists, signed))

    def unmask(self, masked: MaskedSum) -> StepGenerator:
        """Play the step `unmask`: clients reveal shares, with which the server removes the masks.

        A client that reveals a wrong share is rejected at once. The step ends when as many clients as the
        threshold revealed their shares.

        Args:
            masked: the sum of `agree_on_lists`.

        Returns:
            The sum without masks.

        Raises:
            AttemptError: too few clients revealed shares, or the shares do not give the advertised keys.
        """
        self._resume(masked)
        threshold = choose_threshold(len(masked.public))
        survivors = masked.clients
        revealed: dict[str, RevealedShares] = {}
        excluded: dict[str, Fault] = {}

        def read_shares(begin: Begin, blob: bytes) -> None:
            client_id = begin.client_id
            shares = RevealedShares(*decode_revealed(blob, masked.shared, survivors))
            digests = split_blob(masked.digests[client_id], len(masked.shared), DIGESTS_BYTES)
            try:
                share_digests = dict(zip(masked.shared, digests, strict=True))
                check_revealed(client_id, shares, share_digests, masked.binding)
            except InvalidShareError as error:
                excluded[client_id] = Fault("revealed a share that differs from the share sent to it")
                raise WireError(f"{error}; update or revoke {client_id}") from error
            revealed[client_id] = shares

        prepare_task = self._prepare_step(
            UNMASK_STEP, "agreed", lambda _: masked.agreed, SHARE_BYTES * len(masked.shared), read_shares
        )
        try:
            answered, _ = yield from self._collect(survivors, threshold, prepare_task, enough=threshold)
            answers = {client_id: revealed[client_id] for client_id in answered}
            total = unmask_sum(
                masked.total, masked.public, masked.shared, survivors, answers, threshold, masked.binding
            )
        except InvalidShareError as error:
            raise AttemptError(
                str(error),
                excluded
                | dict.fromkeys(error.client_ids, Fault("sent shares that do not give its advertised keys")),
            ) from error
        except (AttemptError, RoundError) as error:
            raise AttemptError(str(error), excluded) from error
        return replace(masked, total=total, is_unmasked=True)

    def _resume(self, masked: MaskedSum) -> None:
        """Continue the attempt of this sum. An earlier process may have started it."""
        self._nonce = masked.attempt
        self._answered = {begin.client_id: {begin.sha256} for begin in masked.begins} | self._answered

    def _prepare_step(
        self,
        step: str,
        name: str,
        content: Callable[[str], bytes],
        limit: int,
        read_answer: Callable[[Begin, bytes], None],
    ) -> Callable[[str], ClientTask]:
        def prepare_task(client_id: str) -> ClientTask:
            blob = content(client_id)
            first = self._tasks.prepare(client_id)
            sha256 = hashlib.sha256(blob).hexdigest()
            self._services.offer(sha256, blob)
            task = replace(
                first.task,
                phase=step,
                models={name: sha256},
                scalars={},
                codec=MASKED_CODEC,
                nonce=make_step_nonce(self._nonce, step),
            )
            answered = frozenset(self._answered.get(client_id, ()))
            return ClientTask(
                task=task,
                expected=first.expected,
                limit=limit,
                read_answer=check_answer,
                earlier_answers=answered,
            )

        def check_answer(begin: Begin, blob: bytes) -> None:
            if not blob:
                raise WireError(
                    f"{begin.client_id} cannot answer the step {step}; look at its log for the reason"
                )
            read_answer(begin, blob)

        return prepare_task

    def _collect(
        self,
        cohort: Sequence[str],
        needed: int,
        prepare_task: Callable[[str], ClientTask],
        *,
        enough: int = 0,
        strict: bool = True,
    ) -> Generator[CollectRequest, Round, tuple[tuple[str, ...], tuple[Begin, ...]]]:
        """Play one step. Return the ids of the clients that answered, sorted, and their announcements.

        Args:
            cohort: ids of the clients that receive the step.
            needed: minimum number of answers.
            prepare_task: makes the task of a client.
            enough: number of answers that close the step early. 0 waits for all clients.
            strict: whether too few answers end the attempt without an extension of the deadline.

        Raises:
            AttemptError: with `strict`, fewer clients than needed answered until the deadline.
            RoundError: without `strict`, fewer clients than needed answered until the deadline and its
                extensions.
        """
        begun = self.round_so_far
        begins = dict[str, Begin]()

        def record_answers(answers: Sequence[Begin]) -> None:
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
                opened = rounds.mark_offline(opened, client_id, opened.opened)
        nonce = prepare_task(cohort[0]).task.nonce
        steps = StepTasks({begun.number: nonce}, prepare_task, frozenset(self._step_nonces - {nonce}))
        self._step_nonces.add(nonce)
        try:
            closed = yield CollectRequest(opened, steps, record_answers)
        except RoundError as error:
            if not strict:
                raise
            missing = ", ".join(client_id for client_id in opened.cohort if client_id not in begins)
            step = steps.prepare(cohort[0]).task.phase
            raise AttemptError(
                f"{len(begins)} of {len(cohort)} clients answered the step {step}, expected {needed}, "
                f"without an answer from {missing}"
            ) from error
        self.round_so_far = replace(
            begun, failed={**begun.failed, **closed.failed}, away={**begun.away, **closed.away}
        )
        return tuple(sorted(closed.received)), tuple(
            begins[client_id] for client_id in sorted(closed.received)
        )
