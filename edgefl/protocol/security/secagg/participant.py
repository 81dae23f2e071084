"""A client's part of one attempt at a masked round.

All inputs and outputs are bytes. `secure_sum` describes the protocol and `wire.masked` the bytes.

A `Participant` draws its secrets when it is created and stores them only in memory. A restarted device has no
secrets, so the other clients remove its masks as for a client that dropped out.

A participant answers each step once. It answers the same request again with the same bytes, and refuses a
different request. So the same keys never mask vectors for two cohorts, and a client never reveals its shares
of both secrets of another client.

All answers after the key list depend on each byte of that list (`hash_binding`). A client opens the shares of
the other clients before it masks its vector. If some shares are not genuine, it sends a complaint that names
their senders instead of a vector. It then reveals nothing in this attempt.

A client signs two lists: the clients that shared, and the clients whose vectors arrived. It reveals shares
only if at least `threshold` clients signed the same lists. The threshold is two thirds of the clients, and
each client signs once. An attempt therefore has at most one sum, of at least `threshold` clients.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable

from edgefl.base.errors import RoundError, WireError
from edgefl.protocol.security.secagg.masking import FixedPointVector, choose_threshold
from edgefl.protocol.security.secagg.secure_sum import (
    OpenedShares,
    PublicKeys,
    check_public_keys,
    generate_keys,
    mask_vector,
    open_shares,
    reveal_shares,
    seal_shares,
)
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.wire.masked import (
    AGREE_STEP,
    MASK_STEP,
    SECAGG_STEPS,
    SHARE_BYTES,
    SHARE_STEP,
    UNMASK_STEP,
    Advertised,
    Agreed,
    Introduced,
    decode_agreed,
    decode_inbox,
    decode_keys,
    decode_lists,
    encode_complaint,
    hash_binding,
    split_blob,
)
from edgefl.protocol.wire.strict_json import encode_json


def to_advertised(keys: PublicKeys, client_id: str, context: str) -> Advertised:
    """Return the message that advertises keys, without a signature.

    Args:
        keys: the public keys of the client.
        context: the attempt, see `edgefl.protocol.wire.masked.hash_context`.
    """
    public = {name: base64.b64encode(getattr(keys, name)).decode() for name in ("seal", "mask", "seed")}
    return Advertised(client_id=client_id, context=context, **public)


def from_advertised(advertised: Advertised) -> PublicKeys:
    """Return the keys that a client advertised.

    Args:
        advertised: the message.

    Raises:
        WireError: a key is not base64, does not have 32 bytes, or has a low order.
    """
    try:
        keys = PublicKeys(
            *(
                base64.b64decode(key, validate=True)
                for key in (advertised.seal, advertised.mask, advertised.seed)
            )
        )
    except (ValueError, binascii.Error) as error:
        raise WireError(
            f"the keys of {advertised.client_id} are not base64; update {advertised.client_id}"
        ) from error
    sizes = [len(key) for key in (keys.seal, keys.mask, keys.seed)]
    if sizes != [32] * 3:
        raise WireError(
            f"the keys of {advertised.client_id} have {', '.join(map(str, sizes))} bytes, expected 32 "
            f"bytes each; update {advertised.client_id}"
        )
    try:
        check_public_keys(keys)
    except ValueError as error:
        raise WireError(
            f"a key of {advertised.client_id} has a low order, so anyone could compute its masks; revoke "
            f"{advertised.client_id}"
        ) from error
    return keys


class Participant:
    """One client in one attempt.

    Args:
        context: the attempt, see `edgefl.protocol.wire.masked.hash_context`.
        trust: signs this client's messages.
        authority: certificate of the authority, PEM, to check the signing keys of the other clients. ""
            without enrolment.
        least_clients: minimum number of clients in a key list that this client answers.
    """

    def __init__(
        self, client_id: str, context: str, trust: Trust, authority: str = "", least_clients: int = 0
    ) -> None:
        self._least_clients = least_clients
        self._client_id = client_id
        self._context = context
        self._trust = trust
        self._authority = authority
        self._secrets, public = generate_keys()
        self._advertised = trust.encode(to_advertised(public, client_id, context), client_id)
        self._public: dict[str, PublicKeys] = {}
        self._binding = ""
        self._signing_keys: dict[str, str] = {}
        self._opened: dict[str, OpenedShares] = {}
        self._answers: dict[str, tuple[bytes, bytes]] = {}

    def advertise(self) -> bytes:
        """Return the message with the public keys, signed if this client is enrolled."""
        return self._advertised

    def answer(self, step: str, asked: bytes, make_vector: Callable[[], FixedPointVector]) -> bytes:
        """Return the answer to a step.

        The answer to `mask` is a complaint if shares of other clients are not genuine. A step that raises an
        error reveals nothing.

        Args:
            step: share, mask, agree or unmask.
            asked: the blob of the step.
            make_vector: returns this client's vector, uint64. It is called in the step `mask`.

        Raises:
            RoundError: the step is out of order or repeats an earlier step with other bytes, or its clients
                are not acceptable, such as too few.
            WireError: the bytes are not valid, or a key or signature is not genuine.
            DataError: raised by `make_vector` for an update that does not fit into a vector.
        """
        if step in self._answers:
            before, reply = self._answers[step]
            if before != asked:
                raise RoundError(
                    f"asked to {step} for other clients than before, with the same keys; nothing is sent"
                )
            return reply
        # A client whose agreement was late or not requested still unmasks if enough other clients signed
        if {*self._answers, *((AGREE_STEP,) if step == UNMASK_STEP else ())} != set(
            SECAGG_STEPS[: SECAGG_STEPS.index(step)]
        ):
            raise RoundError(
                f"asked to {step} after {len(self._answers)} of the steps {', '.join(SECAGG_STEPS)}; "
                "nothing is sent"
            )
        steps = {
            SHARE_STEP: self._share,
            MASK_STEP: lambda blob: self._mask(blob, make_vector),
            AGREE_STEP: self._agree,
            UNMASK_STEP: self._unmask,
        }
        reply = steps[step](asked)
        self._answers[step] = asked, reply
        return reply

    @property
    def _threshold(self) -> int:
        return choose_threshold(len(self._public))

    def _share(self, asked: bytes) -> bytes:
        introduced = decode_keys(asked)
        if len(introduced) < self._least_clients:
            raise RoundError(
                f"asked to share with {len(introduced)} clients, expected {self._least_clients} or more by "
                "--least-clients; lower --least-clients, or raise clients_per_round at the aggregator"
            )
        for client in introduced:
            self._check(client)
        local = [
            encode_json(client.advertised)
            for client in introduced
            if client.advertised.client_id == self._client_id
        ]
        if local != [self._advertised]:
            raise RoundError(
                "the keys of this client in the key list differ from the keys that it advertised; nothing is "
                "sent"
            )
        public = {client.advertised.client_id: from_advertised(client.advertised) for client in introduced}
        binding = hash_binding(self._context, asked)
        sealed = seal_shares(self._secrets, self._client_id, public, choose_threshold(len(public)), binding)
        self._public = public
        self._binding = binding
        self._signing_keys = {client.advertised.client_id: client.signing_key for client in introduced}
        return b"".join(sealed[other] for other in sorted(public))

    def _check(self, client: Introduced) -> None:
        advertised = client.advertised
        if advertised.context != self._context:
            raise RoundError(
                f"{advertised.client_id} advertised keys for another round or another model, expected the "
                "round and model of this client; nothing is sent"
            )
        if not self._authority:
            return
        from edgefl.protocol.security.certificates import check_voucher
        from edgefl.protocol.security.signing import check_signature

        check_voucher(self._authority, advertised.client_id, client.signing_key, client.voucher)
        check_signature(
            advertised,
            encode_json(advertised),
            client.signing_key,
            self._trust.federation,
            advertised.client_id,
        )

    def _mask(self, asked: bytes, make_vector: Callable[[], FixedPointVector]) -> bytes:
        inbox = decode_inbox(asked)
        if (
            not inbox.keys() <= self._public.keys()
            or self._client_id not in inbox
            or len(inbox) < self._threshold
        ):
            raise RoundError(
                f"asked to mask a vector for {len(inbox)} clients, expected {self._threshold} or more that "
                "advertised keys, this client among them; nothing is sent"
            )
        opened, failed = open_shares(self._secrets, self._client_id, self._public, inbox, self._binding)
        if failed:
            return encode_complaint(failed)
        self._opened = opened
        return (
            mask_vector(self._secrets, self._client_id, self._public, inbox, make_vector(), self._binding)
            .astype("<u8")
            .tobytes()
        )

    def _agree(self, asked: bytes) -> bytes:
        self._check_lists(asked)
        return self._trust.encode(
            Agreed(client_id=self._client_id, binding=self._binding, lists=hashlib.sha256(asked).hexdigest()),
            self._client_id,
        )

    def _check_lists(self, lists: bytes) -> tuple[str, ...]:
        shared, came = decode_lists(lists)
        if set(shared) != set(self._opened):
            raise RoundError(
                f"the list names {len(shared)} clients that shared, expected the {len(self._opened)} clients "
                "of the inbox; nothing is sent"
            )
        if len(came) < self._threshold or not set(came) <= set(shared) or self._client_id not in came:
            raise RoundError(
                f"asked for a sum of {len(came)} clients, expected {self._threshold} or more that "
                "shared, this client among them; nothing is sent"
            )
        return came

    def _unmask(self, asked: bytes) -> bytes:
        lists, agreed = decode_agreed(asked)
        if lists != self._answers.get(AGREE_STEP, (lists,))[0]:
            raise RoundError(
                "asked to unmask for other clients than this client agreed to; nothing is revealed"
            )
        came = self._check_lists(lists)
        digest = hashlib.sha256(lists).hexdigest()
        for agreement in agreed:
            if (agreement.binding, agreement.lists) != (
                self._binding,
                digest,
            ) or agreement.client_id not in came:
                raise RoundError(
                    f"{agreement.client_id} agreed to other lists than this client received; nothing is "
                    "revealed"
                )
            if self._authority:
                from edgefl.protocol.security.signing import check_signature

                check_signature(
                    agreement,
                    encode_json(agreement),
                    self._signing_keys[agreement.client_id],
                    self._trust.federation,
                    agreement.client_id,
                )
        if len(agreed) < self._threshold:
            raise RoundError(
                f"{len(agreed)} clients agreed to these lists, expected {self._threshold} or more; nothing "
                "is revealed"
            )
        revealed = reveal_shares(self._client_id, self._opened, came, self._threshold)
        shares = {**revealed.seeds, **revealed.keys}
        return b"".join(shares[other].to_bytes(SHARE_BYTES) for other in sorted(self._opened))


def decode_revealed(
    blob: bytes, shared: tuple[str, ...], came: tuple[str, ...]
) -> tuple[dict[str, int], dict[str, int]]:
    """Read the shares that a client revealed.

    Args:
        blob: the client's answer to `unmask`.
        shared: ids of the clients that shared, sorted.
        came: ids of the clients whose masked vectors arrived, sorted.

    Returns:
        The shares of seeds by the id of a client in `came`, and the shares of mask keys by the id of any
        other client.

    Raises:
        WireError: the size of the blob is not 66 bytes for each client in `shared`.
    """
    shares = dict(
        zip(
            shared, (int.from_bytes(part) for part in split_blob(blob, len(shared), SHARE_BYTES)), strict=True
        )
    )
    return {c: shares[c] for c in shared if c in came}, {c: shares[c] for c in shared if c not in came}
