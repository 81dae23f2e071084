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
from edgefl.security.secagg.masking import Words, threshold_of
from edgefl.security.secagg.secure_sum import (
    Opened,
    PublicKeys,
    advertise,
    check_keys,
    mask_words,
    open_shares,
    reveal,
    share,
)
from edgefl.security.trust import Trust
from edgefl.wire.masked import (
    AGREE,
    MASK,
    SHARE,
    SHARE_BYTES,
    STEPS,
    UNMASK,
    Advertised,
    Agreed,
    Introduced,
    binding_of,
    decode_agreed,
    decode_inbox,
    decode_keys,
    decode_lists,
    encode_complaint,
    split_blob,
)
from edgefl.wire.strict_json import encode_json


def told_of(keys: PublicKeys, client_id: str, context: str) -> Advertised:
    """Return keys as they are advertised, not signed yet."""
    return Advertised(
        client_id, context, *(base64.b64encode(each).decode() for each in (keys.seal, keys.mask, keys.seed))
    )


def keys_of(told: Advertised) -> PublicKeys:
    """Return the keys that a client advertised; WireError when they cannot be used."""
    try:
        keys = PublicKeys(
            *(base64.b64decode(each, validate=True) for each in (told.seal, told.mask, told.seed))
        )
    except (ValueError, binascii.Error) as error:
        raise WireError(f"the keys of {told.client_id} are not base64; update it") from error
    sizes = [len(each) for each in (keys.seal, keys.mask, keys.seed)]
    if sizes != [32] * 3:
        raise WireError(
            f"the keys of {told.client_id} have {', '.join(map(str, sizes))} bytes, expected 32 each; update "
            "it"
        )
    try:
        check_keys(keys)
    except ValueError as error:
        raise WireError(
            f"a key of {told.client_id} cannot be used, for it is of low order; revoke it"
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
        self._own, public = advertise()
        self._advertised = trust.encode(told_of(public, client_id, context), client_id)
        self._public: dict[str, PublicKeys] = {}
        self._binding = ""
        self._signing_keys: dict[str, str] = {}
        self._opened: dict[str, Opened] = {}
        self._answers: dict[str, tuple[bytes, bytes]] = {}

    def advertise(self) -> bytes:
        """Return the public keys, signed where this client is enrolled."""
        return self._advertised

    def answer(self, step: str, asked: bytes, words: Callable[[], Words]) -> bytes:
        """Return what the step (share, mask, agree, unmask) asks for; `words` gives this client's vector.

        The answer to `mask` is a complaint when shares of other clients are not genuine. Raises RoundError,
        and reveals nothing, when the step does not follow on the one before, or was answered to other bytes
        before; WireError for bytes that are not the protocol's, and for keys that are not genuine.
        """
        if step in self._answers:
            before, said = self._answers[step]
            if before != asked:
                raise RoundError(
                    f"asked to {step} for other clients than before, with the same keys; nothing is said"
                )
            return said
        # a client whose agreement came too late, or was not asked for, unmasks what enough others signed
        if {*self._answers, *((AGREE,) if step == UNMASK else ())} != set(STEPS[: STEPS.index(step)]):
            raise RoundError(
                f"asked to {step} after {len(self._answers)} of the steps {', '.join(STEPS)}; nothing is said"
            )
        steps = {
            SHARE: self._share,
            MASK: lambda blob: self._mask(blob, words),
            AGREE: self._agree,
            UNMASK: self._unmask,
        }
        said = steps[step](asked)
        self._answers[step] = asked, said
        return said

    @property
    def _threshold(self) -> int:
        return threshold_of(len(self._public))

    def _share(self, asked: bytes) -> bytes:
        introduced = decode_keys(asked)
        if len(introduced) < self._least_clients:
            raise RoundError(
                f"asked to share with {len(introduced)} clients, expected {self._least_clients} or more by "
                "--least-clients; the owner may lower it, or the aggregator raise clients_per_round"
            )
        for each in introduced:
            self._check(each)
        own = [
            encode_json(each.advertised)
            for each in introduced
            if each.advertised.client_id == self._client_id
        ]
        if own != [self._advertised]:
            raise RoundError(
                "the keys that are shown of this client are not those that it advertised; nothing is said"
            )
        public = {each.advertised.client_id: keys_of(each.advertised) for each in introduced}
        binding = binding_of(self._context, asked)
        sealed = share(self._own, self._client_id, public, threshold_of(len(public)), binding)
        self._public = public
        self._binding = binding
        self._signing_keys = {each.advertised.client_id: each.signing_key for each in introduced}
        return b"".join(sealed[other] for other in sorted(public))

    def _check(self, each: Introduced) -> None:
        told = each.advertised
        if told.context != self._context:
            raise RoundError(
                f"{told.client_id} advertised keys for another round or another model than this client has; "
                "nothing is said"
            )
        if not self._authority:
            return
        from edgefl.security.certificates import check_voucher
        from edgefl.security.signing import check

        check_voucher(self._authority, told.client_id, each.signing_key, each.voucher)
        check(told, encode_json(told), each.signing_key, self._trust.federation, told.client_id)

    def _mask(self, asked: bytes, words: Callable[[], Words]) -> bytes:
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
        opened, failed = open_shares(self._own, self._client_id, self._public, inbox, self._binding)
        if failed:
            return encode_complaint(failed)
        self._opened = opened
        return (
            mask_words(self._own, self._client_id, self._public, inbox, words(), self._binding)
            .astype("<u8")
            .tobytes()
        )

    def _agree(self, asked: bytes) -> bytes:
        self._came_of(asked)
        return self._trust.encode(
            Agreed(self._client_id, self._binding, hashlib.sha256(asked).hexdigest()), self._client_id
        )

    def _came_of(self, lists: bytes) -> tuple[str, ...]:
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
        if lists != self._answers.get(AGREE, (lists,))[0]:
            raise RoundError("asked to unmask for other clients than this one agreed to; nothing is revealed")
        came = self._came_of(lists)
        digest = hashlib.sha256(lists).hexdigest()
        for each in agreed:
            if (each.binding, each.lists) != (self._binding, digest) or each.client_id not in came:
                raise RoundError(
                    f"{each.client_id} agreed to other lists than this client was shown; nothing is revealed"
                )
            if self._authority:
                from edgefl.security.signing import check

                check(
                    each,
                    encode_json(each),
                    self._signing_keys[each.client_id],
                    self._trust.federation,
                    each.client_id,
                )
        if len(agreed) < self._threshold:
            raise RoundError(
                f"{len(agreed)} clients agreed to these lists, expected {self._threshold} or more; nothing "
                "is revealed"
            )
        revealed = reveal(self._client_id, self._opened, came, self._threshold)
        shares = {**revealed.seeds, **revealed.keys}
        return b"".join(shares[other].to_bytes(SHARE_BYTES) for other in sorted(self._opened))


def revealed_of(
    blob: bytes, shared: tuple[str, ...], came: tuple[str, ...]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the shares that a client revealed: of the own masks of those who came, of the mask keys of the
    others. WireError.
    """
    shares = dict(
        zip(
            shared, (int.from_bytes(each) for each in split_blob(blob, len(shared), SHARE_BYTES)), strict=True
        )
    )
    return {c: shares[c] for c in shared if c in came}, {c: shares[c] for c in shared if c not in came}
