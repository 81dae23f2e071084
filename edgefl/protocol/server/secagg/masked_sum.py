"""The sum of a masked round. It is stored, so that a restarted aggregator can play the last two steps."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgefl.base.errors import StateError, WireError
from edgefl.base.system.files import parse_json
from edgefl.protocol.security.secagg.masking import FixedPointVector
from edgefl.protocol.security.secagg.secure_sum import PublicKeys
from edgefl.protocol.wire.masked import DIGESTS_BYTES
from edgefl.protocol.wire.messages import Begin
from edgefl.protocol.wire.strict_json import decode_json, encode_json


@dataclass(frozen=True)
class MaskedSum:
    """One attempt at a masked round whose masked vectors have arrived.

    Attributes:
        session: the session of the federation.
        round: the round.
        attempt: the nonce of the attempt.
        binding: see `edgefl.protocol.wire.masked.hash_binding`.
        public: the public keys by the id of the client that advertised them.
        shared: ids of the clients that sent sealed shares, sorted.
        begins: the announcements of the clients whose vectors arrived, sorted by client.
        total: the sum of these vectors, shape (n,), uint64. It is masked until `is_unmasked`.
        digests: the digests of the shares that a client received, 64 bytes for each of `shared`, by the id of
            a client whose vector arrived.
        agreed: the blob of the step `unmask`, empty before the clients agreed.
        is_unmasked: whether the masks are removed from `total`.
    """

    session: str
    round: int
    attempt: str
    binding: str
    public: Mapping[str, PublicKeys]
    shared: tuple[str, ...]
    begins: tuple[Begin, ...]
    total: FixedPointVector
    digests: Mapping[str, bytes]
    agreed: bytes = b""
    is_unmasked: bool = False

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of the clients whose vectors are in the sum, sorted."""
        return tuple(begin.client_id for begin in self.begins)


def encode_masked_sum(masked_sum: MaskedSum) -> bytes:
    """Return a masked sum as bytes: a line of JSON, the digests, and the elements of the sum."""
    keys = {
        client_id: [
            base64.b64encode(key).decode() for key in (public_keys.seal, public_keys.mask, public_keys.seed)
        ]
        for client_id, public_keys in masked_sum.public.items()
    }
    digests = b"".join(masked_sum.digests[client_id] for client_id in masked_sum.clients)
    rest = digests + masked_sum.total.astype("<u8").tobytes()
    fields = {
        "session": masked_sum.session,
        "round": masked_sum.round,
        "attempt": masked_sum.attempt,
        "binding": masked_sum.binding,
        "public": keys,
        "shared": masked_sum.shared,
        "begins": [encode_json(begin).decode() for begin in masked_sum.begins],
        "agreed": masked_sum.agreed.decode(),
        "unmasked": masked_sum.is_unmasked,
        "sha256": hashlib.sha256(rest).hexdigest(),
    }
    return json.dumps(fields).encode() + b"\n" + rest


def decode_masked_sum(content: bytes, origin: str, session: str, round: int, size: int) -> MaskedSum | None:
    """Read the bytes of `encode_masked_sum`.

    Args:
        content: the bytes.
        origin: path of the bytes, for errors.
        session: the session of the federation.
        round: number of the round that is played.
        size: number of elements of the sum.

    Returns:
        The sum, or None if the bytes belong to another session or round.

    Raises:
        StateError: the bytes are damaged, or the sum has another number of elements.
    """
    line, _, rest = content.partition(b"\n")
    try:
        fields = parse_json(line)
        if (fields["session"], fields["round"]) != (session, round):
            return None
        if fields["sha256"] != hashlib.sha256(rest).hexdigest():
            raise ValueError("its sha256 differs from the recorded sha256")
        public = {
            client_id: PublicKeys(*map(base64.b64decode, keys))
            for client_id, keys in fields["public"].items()
        }
        begins = tuple(decode_json(Begin, text.encode()) for text in fields["begins"])
        shared = tuple(fields["shared"])
        length = DIGESTS_BYTES * len(shared)
        digests = {begin.client_id: rest[length * i : length * (i + 1)] for i, begin in enumerate(begins)}
        total = np.frombuffer(rest[length * len(begins) :], "<u8").astype(np.uint64)
        if len(total) != size:
            raise ValueError(f"its sum has {len(total)} elements, expected {size}")
        return MaskedSum(
            session=session,
            round=round,
            attempt=fields["attempt"],
            binding=fields["binding"],
            public=public,
            shared=shared,
            begins=begins,
            total=total,
            digests=digests,
            agreed=fields["agreed"].encode(),
            is_unmasked=fields["unmasked"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, WireError) as error:
        raise StateError(f"{origin} is damaged: {error}; start again with --fresh") from error
