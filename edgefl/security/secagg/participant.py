"""A client's part of one attempt at a masked round, bytes in and bytes out: the protocol is in `secure_sum`,
the bytes in `wire.masked`.

Secrets are made with the object and live in memory alone: a device that was started again has none, and is
recovered as one that dropped out. Each step is answered once: asked again with the same bytes it says the
same, asked with others it refuses. So nothing is masked twice with the same keys under two sets of clients,
and of no other client both secrets are revealed.

Everything after the key list is bound to that list byte by byte (`binding_of`). A client opens the shares of
the others before it masks. When some are not genuine it sends no words: it answers with a complaint that
names their senders, and reveals nothing in this attempt.

A client signs the lists of who shared and whose words came. It reveals shares only when as many clients as
the threshold signed the same lists. The threshold is two thirds of the clients, and each signs once, so an
attempt has one sum, of as many clients or more.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable

from edgefl.errors import RoundError, WireError
from edgefl.security.secagg.masking import FixedPointVector, choose_threshold
from edgefl.security.secagg.secure_sum import (
    OpenedShares,
    PublicKeys,
    check_public_keys,
    generate_keys,
    mask_vector,
    open_shares,
    reveal_shares,
    seal_shares,
)
from edgefl.security.trust import Trust
from edgefl.wire.masked import (
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
from edgefl.wire.strict_json import encode_json


def to_advertised(keys: PublicKeys, client_id: str, context: str) -> Advertised:
    """Return keys as they are advertised, not signed yet."""
    return Advertised(
        client_id, context, *(base64.b64encode(key).decode() for key in (keys.seal, keys.mask, keys.seed))
    )


def from_advertised(advertised: Advertised) -> PublicKeys:
    """Return the keys that a client advertised; WireError when they cannot be used."""
    try:
        keys = PublicKeys(
            *(
                base64.b64decode(key, validate=True)
                for key in (advertised.seal, advertised.mask, advertised.seed)
            )
        )
    except (ValueError, binascii.Error) as error:
        raise WireError(f"the keys of {advertised.client_id} are not base64; update it") from error
    sizes = [len(key) for key in (keys.seal, keys.mask, keys.seed)]
    if sizes != [32] * 3:
        raise WireError(
            f"the keys of {advertised.client_id} have {', '.join(map(str, sizes))} bytes, expected 32 "
            f"each; update "
            "it"
        )
    try:
        check_public_keys(keys)
    except ValueError as error:
        raise WireError(
            f"a key of {advertised.client_id} cannot be used, for it is of low order; revoke it"
        ) from error
    return keys


class Participant:
    """One client in one attempt.

    `authority`: PEM, by which the others' signing keys are checked; empty where nobody was enrolled.
    `least_clients`: the fewest clients of a key list that this client answers to.
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
        """Return the public keys, signed where this client is enrolled."""
        return self._advertised

    def answer(self, step: str, asked: bytes, make_vector: Callable[[], FixedPointVector]) -> bytes:
        """Return what the step (share, mask, agree, unmask) asks for; `words` gives this client's vector.

        The answer to `mask` is a complaint when shares of other clients are not genuine. Raises RoundError,
        and reveals nothing, when the step does not follow on the one before, or was answered to other bytes
        before; WireError for bytes that are not the protocol's, and for keys that are not genuine.
        """
        if step in self._answers:
            before, reply = self._answers[step]
            if before != asked:
                raise RoundError(
                    f"asked to {step} for other clients than before, with the same keys; nothing is said"
                )
            return reply
        # a client whose agreement came too late, or was not asked for, unmasks what enough others signed
        if {*self._answers, *((AGREE_STEP,) if step == UNMASK_STEP else ())} != set(
            SECAGG_STEPS[: SECAGG_STEPS.index(step)]
        ):
            raise RoundError(
                f"asked to {step} after {len(self._answers)} of the steps {', '.join(SECAGG_STEPS)}; "
                f"nothing is said"
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
                "--least-clients; the owner may lower it, or the aggregator raise clients_per_round"
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
                "the keys that are shown of this client are not those that it advertised; nothing is said"
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
                f"{advertised.client_id} advertised keys for another round or another model than this "
                f"client has; "
                "nothing is said"
            )
        if not self._authority:
            return
        from edgefl.security.certificates import check_voucher
        from edgefl.security.signing import check_signature

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
                f"asked for words masked towards {len(inbox)} clients, expected {self._threshold} or more of "
                "those that advertised, this one among them; nothing is said"
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
            Agreed(self._client_id, self._binding, hashlib.sha256(asked).hexdigest()), self._client_id
        )

    def _check_lists(self, lists: bytes) -> tuple[str, ...]:
        shared, came = decode_lists(lists)
        if set(shared) != set(self._opened):
            raise RoundError(
                f"{len(shared)} clients are said to have shared, expected the {len(self._opened)} of the "
                "inbox; nothing is said"
            )
        if len(came) < self._threshold or not set(came) <= set(shared) or self._client_id not in came:
            raise RoundError(
                f"asked for a sum of {len(came)} clients, expected {self._threshold} or more of those that "
                "shared, this one among them; nothing is said"
            )
        return came

    def _unmask(self, asked: bytes) -> bytes:
        lists, agreed = decode_agreed(asked)
        if lists != self._answers.get(AGREE_STEP, (lists,))[0]:
            raise RoundError("asked to unmask for other clients than this one agreed to; nothing is revealed")
        came = self._check_lists(lists)
        digest = hashlib.sha256(lists).hexdigest()
        for agreement in agreed:
            if (agreement.binding, agreement.lists) != (
                self._binding,
                digest,
            ) or agreement.client_id not in came:
                raise RoundError(
                    f"{agreement.client_id} agreed to other lists than this client was shown; nothing is "
                    f"revealed"
                )
            if self._authority:
                from edgefl.security.signing import check_signature

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
    """Return the shares that a client revealed: of the own masks of those who came, of the mask keys of the
    others. WireError.
    """
    shares = dict(
        zip(
            shared, (int.from_bytes(part) for part in split_blob(blob, len(shared), SHARE_BYTES)), strict=True
        )
    )
    return {c: shares[c] for c in shared if c in came}, {c: shares[c] for c in shared if c not in came}
