"""Encodes and decodes the messages of a masked round that are not ordinary JSON messages.

A masked round has five steps, each a task and an upload (docs/protocol.md):

    task `federate`, codec fp32+masked    up: `Advertised`, JSON
    task `share`,  models {keys: sha256}   down: the advertised clients, one line each; up: 224 bytes
                                           (digests, sealed shares) for each client, by id
    task `mask`,   models {inbox: sha256}  down: a line of the clients that shared, and the 224 bytes that
                                           each of them sealed for this client;
                                           up: 8 bytes per vector element, or a complaint
                                           (`encode_complaint`)
    task `agree`,  models {lists: sha256}  down: a line of the clients that shared, a line of the clients
                                           whose vectors arrived; up: `Agreed`, JSON
    task `unmask`, models {agreed: sha256} down: those lists, and `Agreed` of enough clients, one line each;
                                           up: 66 bytes for each client that shared, by id

The nonce of a task consists of the nonce of the attempt and the name of the step. It shows which step an
upload answers.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgefl.base.codecs import MASKED_SUFFIX
from edgefl.base.errors import WireError
from edgefl.base.names import CLIENT_ID_PATTERN
from edgefl.protocol.wire.messages import Task
from edgefl.protocol.wire.strict_json import decode_json, encode_json

MASKED_CODEC = f"fp32{MASKED_SUFFIX}"
SHARE_STEP = "share"
MASK_STEP = "mask"
AGREE_STEP = "agree"
UNMASK_STEP = "unmask"
SECAGG_STEPS = (SHARE_STEP, MASK_STEP, AGREE_STEP, UNMASK_STEP)
DIGESTS_BYTES = 64
"""Size of two digests: of the share of the sender's mask key, and of the share of its seed."""
SEALED_BYTES = DIGESTS_BYTES + 160
SHARE_BYTES = 66
MAX_ATTEMPTS = 8
"""Maximum number of attempts at one round in which a device sends its masked vector, and of attempts that an
aggregator plays."""
VECTOR_ELEMENT_BYTES = 8
ADVERTISED_BYTES = 2048
AGREED_BYTES = 512
MAX_MASKED_CLIENTS = 2**12


@dataclass(frozen=True)
class Advertised:
    """The public keys of a client for one attempt at one round.

    Attributes:
        context: the attempt that the keys belong to, see `hash_context`.
        seal: X25519 key for encryption to this client, 32 bytes in base64.
        mask: X25519 key for the agreement on pairwise masks, 32 bytes in base64.
        seed: sha256 of the seed of the client's self mask, 32 bytes in base64.
    """

    MAX_BYTES = ADVERTISED_BYTES

    client_id: str
    context: str
    seal: str
    mask: str
    seed: str
    signature: str = ""


@dataclass(frozen=True)
class Agreed:
    """A client's agreement to the two lists of an attempt.

    The lists name the clients that shared, and the clients whose masked vectors arrived.

    Attributes:
        binding: see `hash_binding`.
        lists: sha256 in hex of the blob of `agree`.
    """

    MAX_BYTES = AGREED_BYTES

    client_id: str
    binding: str
    lists: str
    signature: str = ""


@dataclass(frozen=True)
class Introduced:
    """A client as the aggregator introduces it to the others.

    Attributes:
        advertised: the client's public keys.
        signing_key: the client's public Ed25519 key in base64. "" without enrolment.
        voucher: the authority's voucher for `signing_key`. "" without enrolment.
    """

    advertised: Advertised
    signing_key: str = ""
    voucher: str = ""


def parse_attempt(nonce: str) -> str:
    """Return the nonce of the attempt from the nonce of a task or an upload."""
    return nonce.partition("-")[0]


def make_step_nonce(attempt: str, step: str) -> str:
    """Return the nonce of one step of an attempt.

    Args:
        attempt: the nonce of the attempt, without `-`.
        step: name of the step, such as `share`.
    """
    return f"{attempt}-{step}"


def hash_context(federation: str, task: Task) -> str:
    """Return the context of an attempt, the sha256 in hex of the facts that all its masks depend on.

    The facts are federation, session, round, phase, attempt, plan, models, scalars and seed. A client that
    was sent other models than the others has another context, so its masks do not cancel.

    Args:
        federation: name of the federation.
        task: the client's task of the first step, whose models are the models to train.

    Source: Pasquini et al., Eluding Secure Aggregation in Federated Learning via Model Inconsistency, CCS
    2022.
    """
    values = [
        federation,
        task.session,
        task.round,
        task.phase,
        parse_attempt(task.nonce),
        task.plan,
        sorted(task.models.items()),
        sorted(task.scalars.items()),
        task.seed,
    ]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def hash_binding(context: str, keys: bytes) -> str:
    """Return the binding of an attempt, the sha256 in hex of its context and its key list.

    Shares, seals and masks depend on the binding. Clients that received different key lists have different
    bindings and cannot open each other's shares.

    Args:
        context: see `hash_context`.
        keys: the key list as encoded by `encode_keys`.
    """
    return hashlib.sha256(context.encode() + b"\n" + keys).hexdigest()


def encode_keys(introduced: Sequence[Introduced]) -> bytes:
    """Return the key list: one line per client."""
    lines = (
        b"\t".join([encode_json(i.advertised), i.signing_key.encode(), i.voucher.encode()])
        for i in introduced
    )
    return b"\n".join(lines)


def decode_keys(blob: bytes) -> tuple[Introduced, ...]:
    """Read a key list.

    Raises:
        WireError: a line is not valid, or the ids are not sorted and unique.
    """
    introduced = []
    for line in blob.split(b"\n")[: MAX_MASKED_CLIENTS + 1]:
        parts = line.split(b"\t")
        if len(parts) != 3 or len(line) > 2 * ADVERTISED_BYTES:
            raise WireError(
                f"a line of {len(parts)} parts, expected a client's keys in 3; update the older of device "
                "and aggregator"
            )
        key, voucher = (part.decode("ascii", "replace") for part in parts[1:])
        introduced.append(Introduced(decode_json(Advertised, parts[0]), key, voucher))
    _check_ids([client.advertised.client_id for client in introduced])
    return tuple(introduced)


def encode_ids(ids: Sequence[str]) -> bytes:
    """Return client ids as one line."""
    return " ".join(ids).encode()


def decode_ids(line: bytes) -> tuple[str, ...]:
    """Read a line of client ids.

    Raises:
        WireError: an id is not valid, or the ids are not sorted and unique.
    """
    ids = line.decode("ascii", "replace").split(" ")
    _check_ids(ids)
    return tuple(ids)


def encode_lists(shared: Sequence[str], came: Sequence[str]) -> bytes:
    """Return the blob of `agree`: one line of client ids per list.

    Args:
        shared: ids of the clients that sent sealed shares, sorted.
        came: ids of the clients whose masked vectors arrived, sorted.
    """
    return encode_ids(shared) + b"\n" + encode_ids(came)


def decode_lists(blob: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read the two lists of `encode_lists`.

    Raises:
        WireError: the bytes are not two lists of client ids.
    """
    shared, _, came = blob.partition(b"\n")
    return decode_ids(shared), decode_ids(came)


def encode_agreed(lists: bytes, agreed: Sequence[Agreed]) -> bytes:
    """Return the blob of `unmask`: the blob of `agree`, and a line for each client that agreed to it.

    Args:
        lists: the blob of `agree`, see `encode_lists`.
        agreed: the agreements, sorted by client id.
    """
    return b"\n".join([lists, *map(encode_json, agreed)])


def decode_agreed(blob: bytes) -> tuple[bytes, tuple[Agreed, ...]]:
    """Read the blob of `encode_agreed`.

    Returns:
        The blob of `agree`, and the agreements sorted by client id.

    Raises:
        WireError: the bytes are not valid, or the ids are not sorted and unique.
    """
    parts = blob.split(b"\n")
    agreed = tuple(decode_json(Agreed, line) for line in parts[2 : MAX_MASKED_CLIENTS + 3])
    _check_ids([agreement.client_id for agreement in agreed])
    return b"\n".join(parts[:2]), agreed


def encode_inbox(sealed: Mapping[str, bytes]) -> bytes:
    """Return the blob of `mask`: the sealed shares for one client, by the id of their sender."""
    ids = sorted(sealed)
    return encode_ids(ids) + b"\n" + b"".join(sealed[client_id] for client_id in ids)


def decode_inbox(blob: bytes) -> dict[str, bytes]:
    """Read the blob of `encode_inbox`.

    Raises:
        WireError: the bytes are not an inbox.
    """
    line, _, content = blob.partition(b"\n")
    ids = decode_ids(line)
    return dict(zip(ids, split_blob(content, len(ids), SEALED_BYTES), strict=True))


def encode_complaint(ids: Sequence[str]) -> bytes:
    """Return the answer to `mask` of a client that cannot open some sealed shares.

    Its length is never a multiple of 8, unlike the length of a masked vector.

    Args:
        ids: ids of the clients that sealed these shares, sorted.
    """
    line = encode_ids(ids)
    return line if len(line) % VECTOR_ELEMENT_BYTES else line + b"\n"


def decode_complaint(blob: bytes) -> tuple[str, ...]:
    """Return the accused clients of an answer to `mask`. A masked vector accuses no client.

    Raises:
        WireError: the bytes are neither a complaint nor a masked vector.
    """
    return decode_ids(blob.removesuffix(b"\n")) if len(blob) % VECTOR_ELEMENT_BYTES else ()


def split_blob(blob: bytes, count: int, size: int) -> list[bytes]:
    """Split a blob into parts of equal size.

    Args:
        blob: the parts, joined.
        count: expected number of parts.
        size: size of a part in bytes.

    Raises:
        WireError: the blob has another size.
    """
    if len(blob) != count * size:
        raise WireError(
            f"{len(blob)} bytes, expected {size} for each of {count} clients; update the older of device and "
            "aggregator"
        )
    return [blob[start : start + size] for start in range(0, len(blob), size)]


def _check_ids(ids: Sequence[str]) -> None:
    if (
        len(ids) > MAX_MASKED_CLIENTS
        or list(ids) != sorted(set(ids))
        or not all(CLIENT_ID_PATTERN.fullmatch(client_id) for client_id in ids)
    ):
        raise WireError(
            f"clients {' '.join(ids)[:100]!r}, expected at most {MAX_MASKED_CLIENTS} ids, sorted and unique"
        )
