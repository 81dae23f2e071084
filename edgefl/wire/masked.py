"""What a round of masked updates says beside the ordinary messages, as bytes.

Such a round is five exchanges, each a task and an upload like any other (docs/protocol.md):

    task `federate`, codec fp32+masked    up: `Advertised`, JSON
    task `share`,  models {keys: sha256}   down: who advertised, a line each; up: 224 bytes (digests, sealed
                                           shares) for each, by id
    task `mask`,   models {inbox: sha256}  down: a line of who shared, and those 224 bytes of each of them for
                                           this client;
                                           up: 8 bytes a word, or a complaint (`encode_complaint`)
    task `agree`,  models {lists: sha256}  down: a line of who shared, a line of whose words came; up:
                                           `Agreed`, JSON
    task `unmask`, models {agreed: sha256} down: those lists, and `Agreed` of enough of them, a line each;
                                           up: 66 bytes for each who shared, by id

The nonce of an attempt, with the exchange's name behind it, is the task's nonce: an upload says with it what
it answers.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgefl.errors import WireError
from edgefl.wire.codecs import MASKED_SUFFIX
from edgefl.wire.messages import Task
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.topics import CLIENT_ID_PATTERN

MASKED_CODEC = f"fp32{MASKED_SUFFIX}"
SHARE_STEP = "share"
MASK_STEP = "mask"
AGREE_STEP = "agree"
UNMASK_STEP = "unmask"
SECAGG_STEPS = (SHARE_STEP, MASK_STEP, AGREE_STEP, UNMASK_STEP)
DIGESTS_BYTES = 64
"""Two digests: of the share of the dealer's mask key, and of the share of its seed."""
SEALED_BYTES = DIGESTS_BYTES + 160
SHARE_BYTES = 66
MAX_ATTEMPTS = 8
"""A device takes part in at most this many attempts at one round."""
ADVERTISED_BYTES = 2048
AGREED_BYTES = 512
MAX_MASKED_CLIENTS = 2**12


@dataclass(frozen=True)
class Advertised:
    """A client's public keys for one attempt at one round: X25519, base64 of 32 bytes each.

    context: see `context_of`; seed: base64 of the sha256 of the seed of the client's own mask.
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
    """A client's word that it was shown these lists of who shared and whose words came: the sha256, in hex,
    of the blob of `agree`.
    """

    MAX_BYTES = AGREED_BYTES

    client_id: str
    binding: str
    lists: str
    signature: str = ""


@dataclass(frozen=True)
class Introduced:
    """A client as the aggregator presents it to the others: what it advertised, its signing key, and the
    authority's word for that key.

    The last two are empty where nobody was enrolled.
    """

    advertised: Advertised
    signing_key: str = ""
    voucher: str = ""


def parse_attempt(nonce: str) -> str:
    """Return the nonce of the attempt that a task or an upload belongs to."""
    return nonce.partition("-")[0]


def make_step_nonce(attempt: str, step: str) -> str:
    """Return the nonce of one exchange of an attempt."""
    return f"{attempt}-{step}"


def hash_context(federation: str, task: Task) -> str:
    """Return what all masks of an attempt are bound to, sha256 in hex: federation, session, round, attempt,
    plan, and the models.

    A client that was sent another model than the others has another context, and its masks do not cancel
    (Pasquini et al., Eluding Secure Aggregation in Federated Learning via Model Inconsistency, CCS 2022).
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
    """Return what shares, seals and masks of an attempt are bound to, sha256 in hex: its context, and its key
    list byte by byte.

    Clients that were shown different key lists have different bindings, and cannot open each other's shares.
    """
    return hashlib.sha256(context.encode() + b"\n" + keys).hexdigest()


def encode_keys(introduced: Sequence[Introduced]) -> bytes:
    """Return a line for each client."""
    lines = (
        b"\t".join([encode_json(i.advertised), i.signing_key.encode(), i.voucher.encode()])
        for i in introduced
    )
    return b"\n".join(lines)


def decode_keys(blob: bytes) -> tuple[Introduced, ...]:
    """Read the lines; WireError for what is none, for an id twice, and when they are not sorted by id."""
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
    """Return client ids in one line."""
    return " ".join(ids).encode()


def decode_ids(line: bytes) -> tuple[str, ...]:
    """Read client ids; WireError for what is none, and when they are not sorted."""
    ids = line.decode("ascii", "replace").split(" ")
    _check_ids(ids)
    return tuple(ids)


def encode_lists(shared: Sequence[str], came: Sequence[str]) -> bytes:
    """Return a line of the clients that shared, and one of those whose words came."""
    return encode_ids(shared) + b"\n" + encode_ids(came)


def decode_lists(blob: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read the two lists; WireError for other bytes."""
    shared, _, came = blob.partition(b"\n")
    return decode_ids(shared), decode_ids(came)


def encode_agreed(lists: bytes, agreed: Sequence[Agreed]) -> bytes:
    """Return the blob of `agree`, and a line for each client that agreed to it."""
    return b"\n".join([lists, *map(encode_json, agreed)])


def decode_agreed(blob: bytes) -> tuple[bytes, tuple[Agreed, ...]]:
    """Read the blob of `agree` and the lines.

    WireError for other bytes, for an id twice, and for lines that are not sorted by id.
    """
    parts = blob.split(b"\n")
    agreed = tuple(decode_json(Agreed, line) for line in parts[2 : MAX_MASKED_CLIENTS + 3])
    _check_ids([agreement.client_id for agreement in agreed])
    return b"\n".join(parts[:2]), agreed


def encode_inbox(sealed: Mapping[str, bytes]) -> bytes:
    """Return what each client sealed for one of them."""
    ids = sorted(sealed)
    return encode_ids(ids) + b"\n" + b"".join(sealed[client_id] for client_id in ids)


def decode_inbox(blob: bytes) -> dict[str, bytes]:
    """Read what each client sealed; WireError for what is no such blob."""
    line, _, content = blob.partition(b"\n")
    ids = decode_ids(line)
    return dict(zip(ids, split_blob(content, len(ids), SEALED_BYTES), strict=True))


def encode_complaint(ids: Sequence[str]) -> bytes:
    """Return the answer to `mask` of a client that cannot open what these clients sealed for it.

    Its length is no multiple of 8, which the length of masked words always is.
    """
    line = encode_ids(ids)
    return line if len(line) % 8 else line + b"\n"


def decode_complaint(blob: bytes) -> tuple[str, ...]:
    """Read an answer to `mask`: the clients that it accuses, empty for masked words.

    WireError for bytes that are neither.
    """
    return decode_ids(blob.removesuffix(b"\n")) if len(blob) % 8 else ()


def split_blob(blob: bytes, count: int, size: int) -> list[bytes]:
    """Return parts of one size; WireError when these are not as many."""
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
            f"clients {' '.join(ids)[:100]!r}, expected at most {MAX_MASKED_CLIENTS} ids, sorted, each once"
        )
