"""Computes a sum of clients' vectors with pairwise masks, so that the aggregator learns only the sum.

Clients draw new keys in each attempt. The steps, for clients u and v, whose ids are compared by u < v:

    advertise  u -> all          two public keys (one for encryption to u, one to agree on masks with u),
                                 and the digest of u's seed
    share      u -> v, sealed    a Shamir share of u's private mask key, and one of the seed b_u of u's
                                 self mask; their digests are not encrypted
    mask       u -> aggregator   y_u = x_u + m(b_u) + sum_{v > u} m(s_uv) - sum_{v < u} m(s_uv)
                                 modulo 2^64, over all v that shared
    reveal     u -> aggregator   for each v whose y_v arrived, u's share of b_v, and for each other v, u's
                                 share of v's mask key, but never both
    unmask     aggregator        subtracts m(b_v) of the clients whose y_v arrived, and removes the masks that
                                 these clients share with the other clients

m is a ChaCha20 keystream. s_uv comes from X25519 by HKDF-SHA256. Shares are sealed by AES-256-GCM.

`binding` is a hash of the federation, the attempt, the models and the list of all advertised keys
(`wire.masked.hash_binding`). It is part of every derived key and digest. Clients that received different
lists cannot open each other's shares, and their masks do not cancel.

The digests show which client is at fault. A client compares its shares with them before it masks
(`open_shares`). The aggregator compares each revealed share with them (`check_revealed`). If a share does not
match, the client that reveals it is at fault. If matching shares do not give the advertised key or seed,
their sender is at fault (`unmask_sum`).

All functions are pure, except that they draw keys, seeds and nonces from the operating system. The work of a
client grows linearly with the size of the cohort, and the work of the aggregator grows with its square.

Source: Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017,
figure 4. Its consistency check is in `participant`.
"""

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgefl.base.errors import RoundError
from edgefl.protocol.security.secagg.masking import MIN_MASKED_CLIENTS, FixedPointVector, add_masks
from edgefl.protocol.security.secagg.shamir import PRIME, SHARE_BYTES, combine_shares, split_secret
from edgefl.protocol.wire.masked import MAX_MASKED_CLIENTS

SEED_BYTES = 32
DIGEST_BYTES = 32


class InvalidShareError(RoundError):
    """Shares do not match the digests or keys of their sender.

    Attributes:
        client_ids: ids of the clients at fault, sorted.
    """

    def __init__(self, message: str, client_ids: Collection[str]) -> None:
        super().__init__(message)
        self.client_ids = tuple(sorted(client_ids))


@dataclass(frozen=True)
class PublicKeys:
    """The public values that a client advertises, 32 bytes each.

    Attributes:
        seal: X25519 key for encryption to this client.
        mask: X25519 key for the agreement on pairwise masks.
        seed: sha256 of the seed of the client's self mask.
    """

    seal: bytes
    mask: bytes
    seed: bytes


@dataclass(frozen=True)
class Secrets:
    """The secrets of a client for one attempt, 32 bytes each. `repr` does not show them.

    They must not be used in another attempt.

    Attributes:
        seal: private X25519 key for encryption.
        mask: private X25519 key for the agreement on pairwise masks.
        self_seed: seed of the client's self mask.
    """

    seal: bytes
    mask: bytes
    self_seed: bytes

    def __repr__(self) -> str:
        return "Secrets(...)"


@dataclass(frozen=True)
class OpenedShares:
    """The two shares that one client sent to another. `repr` does not show them.

    Attributes:
        key: share of the sender's private mask key.
        seed: share of the sender's seed.
    """

    key: int
    seed: int

    def __repr__(self) -> str:
        return "OpenedShares(...)"


@dataclass(frozen=True)
class RevealedShares:
    """The shares that a client reveals, by the id of the client that sent them.

    Attributes:
        seeds: shares of the seeds of self masks.
        keys: shares of private mask keys.
    """

    seeds: Mapping[str, int]
    keys: Mapping[str, int]


def count_extra_bytes(vector_size: int, values: int, clients: int, threshold: int) -> tuple[int, int]:
    """Return the bytes (up, down) that a masked round adds for one client, without message headers.

    Args:
        vector_size: number of elements of the masked vector.
        values: number of values of a plain update.
        clients: number of clients of the cohort.
        threshold: number of clients whose agreements each client receives.

    Returns:
        Bytes that the client sends beyond one float32 for each value, and bytes that it receives beyond a
        plain round.
    """
    keys = 96
    signature = 64
    sealed = 2 * DIGEST_BYTES + 12 + 2 * SHARE_BYTES + 16
    up = 8 * vector_size - 4 * values + keys + clients * sealed + signature + clients * SHARE_BYTES
    return up, clients * (keys + sealed) + threshold * signature


def find_min_threshold(clients: int) -> int:
    """Return the smallest allowed threshold, which is more than half of the clients.

    Two disjoint groups of clients cannot both reach it. So they cannot unmask two different sums.

    Args:
        clients: number of clients that advertised keys.
    """
    return clients // 2 + 1


def generate_keys() -> tuple[Secrets, PublicKeys]:
    """Return new secrets of a client and the matching public keys."""
    seal = X25519PrivateKey.generate()
    mask = X25519PrivateKey.generate()
    client_secrets = Secrets(
        seal.private_bytes_raw(), mask.private_bytes_raw(), secrets.token_bytes(SEED_BYTES)
    )
    return client_secrets, PublicKeys(
        seal.public_key().public_bytes_raw(),
        mask.public_key().public_bytes_raw(),
        _hash_sha256(client_secrets.self_seed),
    )


def check_public_keys(keys: PublicKeys) -> None:
    """Check that X25519 public keys do not have a low order.

    An exchange with a key of low order gives a secret that anyone can compute.

    Args:
        keys: the public keys of a client.

    Raises:
        ValueError: a key has a low order, or does not have 32 bytes.
    """
    probe = X25519PrivateKey.generate()
    for public in (keys.seal, keys.mask):
        probe.exchange(X25519PublicKey.from_public_bytes(public))


def seal_shares(
    client_secrets: Secrets, client_id: str, public: Mapping[str, PublicKeys], threshold: int, binding: str
) -> dict[str, bytes]:
    """Return a message with sealed shares for each client, this client included.

    A message consists of two digests that are not encrypted, and the sealed shares.

    Args:
        public: public keys of all clients, by id.
        threshold: number of shares that give a secret.
        binding: the attempt and its key list.

    Returns:
        The message, 224 bytes, by the id of its receiver.

    Raises:
        RoundError: there are too few or too many clients, or the threshold is not more than half of them.
    """
    count = len(public)
    if (
        not MIN_MASKED_CLIENTS <= count <= MAX_MASKED_CLIENTS
        or not find_min_threshold(count) <= threshold <= count
    ):
        raise RoundError(
            f"a masked sum has {count} clients and the threshold {threshold}, expected {MIN_MASKED_CLIENTS} "
            f"to {MAX_MASKED_CLIENTS} clients and a threshold of {find_min_threshold(count)} to {count}; "
            "change clients_per_round"
        )
    points = _assign_points(public)
    of_key, of_seed = (
        split_secret(secret, points.values(), threshold)
        for secret in (client_secrets.mask, client_secrets.self_seed)
    )
    messages = {}
    for other, keys in public.items():
        route = _encode_route(binding, client_id, other)
        shares = [part[points[other]].to_bytes(SHARE_BYTES) for part in (of_key, of_seed)]
        key = _derive_shared_key(client_secrets.seal, keys.seal, f"{binding} seal")
        nonce = secrets.token_bytes(12)
        digests = b"".join(_digest(route, part) for part in shares)
        messages[other] = digests + nonce + AESGCM(key).encrypt(nonce, b"".join(shares), route)
    return messages


def open_shares(
    client_secrets: Secrets,
    client_id: str,
    public: Mapping[str, PublicKeys],
    inbox: Mapping[str, bytes],
    binding: str,
) -> tuple[dict[str, OpenedShares], tuple[str, ...]]:
    """Open the messages that the clients sealed for this client with `seal_shares`.

    Args:
        public: public keys of all clients, by id.
        inbox: sealed message by the id of its sender.
        binding: the attempt and its key list.

    Returns:
        The shares by the id of their sender, and the sorted ids of the clients whose message is not genuine.
    """
    opened = {}
    failed = []
    for other, message in sorted(inbox.items()):
        route = _encode_route(binding, other, client_id)
        digests = message[: 2 * DIGEST_BYTES]
        nonce = message[2 * DIGEST_BYTES :][:12]
        sealed = message[2 * DIGEST_BYTES + 12 :]
        try:
            both = AESGCM(
                _derive_shared_key(client_secrets.seal, public[other].seal, f"{binding} seal")
            ).decrypt(nonce, sealed, route)
        except (InvalidTag, ValueError):
            failed.append(other)
            continue
        shares = both[:SHARE_BYTES], both[SHARE_BYTES:]
        if len(both) == 2 * SHARE_BYTES and digests == b"".join(_digest(route, part) for part in shares):
            opened[other] = OpenedShares(*map(int.from_bytes, shares))
        else:
            failed.append(other)
    return opened, tuple(failed)


def mask_vector(
    client_secrets: Secrets,
    client_id: str,
    public: Mapping[str, PublicKeys],
    shared: Collection[str],
    vector: FixedPointVector,
    binding: str,
) -> FixedPointVector:
    """Return the vector with the client's self mask and its pairwise masks.

    Args:
        public: public keys of all clients, by id.
        shared: ids of the clients whose sealed shares arrived.
        vector: shape (n,), uint64.
        binding: the attempt and its key list.

    Returns:
        The masked vector, shape (n,), uint64.
    """
    seeds = {
        other: _derive_shared_key(client_secrets.mask, public[other].mask, f"{binding} mask")
        for other in shared
        if other != client_id
    }
    plus = [client_secrets.self_seed, *(seed for other, seed in seeds.items() if other > client_id)]
    return add_masks(vector, plus, (seed for other, seed in seeds.items() if other < client_id))


def reveal_shares(
    client_id: str, opened: Mapping[str, OpenedShares], came: Collection[str], threshold: int
) -> RevealedShares:
    """Return the shares that the aggregator needs to unmask the sum of some clients.

    A client must call this only once in an attempt.

    Args:
        opened: shares of each client that shared, from `open_shares`.
        came: ids of the clients whose masked vectors arrived.
        threshold: minimum number of clients in the sum.

    Raises:
        RoundError: the sum has too few clients, contains a client that did not share, or lacks this client.
    """
    if len(set(came)) < threshold or not set(came) <= set(opened) or client_id not in came:
        raise RoundError(
            f"{client_id} is asked to unmask a sum of {len(set(came))} clients, expected {threshold} or more "
            f"that shared, {client_id} among them; nothing is revealed"
        )
    return RevealedShares(
        {other: shares.seed for other, shares in opened.items() if other in came},
        {other: shares.key for other, shares in opened.items() if other not in came},
    )


def check_revealed(
    client_id: str, revealed: RevealedShares, digests: Mapping[str, bytes], binding: str
) -> None:
    """Check that a client revealed the shares that were sent to it.

    Args:
        client_id: the client that reveals, not this one.
        digests: the two digests (64 bytes) at the head of each message to this client, by sender.
        binding: the attempt and its key list.

    Raises:
        InvalidShareError: a share does not match its digest. The error names this client.
    """
    wrong = []
    for index, shares in enumerate((revealed.keys, revealed.seeds)):
        for other, value in shares.items():
            digest = digests[other][index * DIGEST_BYTES :][:DIGEST_BYTES]
            if (
                value >= PRIME
                or _digest(_encode_route(binding, other, client_id), value.to_bytes(SHARE_BYTES)) != digest
            ):
                wrong.append(other)
    if wrong:
        raise InvalidShareError(
            f"{client_id} revealed a share that differs from the share sent by {', '.join(sorted(wrong))}",
            [client_id],
        )


def unmask_sum(
    total: FixedPointVector,
    public: Mapping[str, PublicKeys],
    shared: Collection[str],
    came: Collection[str],
    revealed: Mapping[str, RevealedShares],
    threshold: int,
    binding: str,
) -> FixedPointVector:
    """Remove the masks from the sum of the masked vectors.

    Each client must have revealed the shares that were sent to it, see `check_revealed`.

    Args:
        total: sum of the masked vectors in `came`, shape (n,), uint64.
        public: public keys of all clients, by id.
        shared: ids of the clients that shared.
        came: ids of the clients whose masked vectors arrived.
        revealed: revealed shares by the id of the client that reveals them.
        threshold: number of shares that give a secret.
        binding: the attempt and its key list.

    Returns:
        The sum of the vectors in `came`, shape (n,), uint64.

    Raises:
        InvalidShareError: shares do not give an advertised key or seed. The error names their senders.
        RoundError: fewer than `threshold` clients revealed their shares.
    """
    points = _assign_points(public)

    def recover_secret(kind: str, owner: str) -> bytes:
        shares = {
            points[holder]: value
            for holder, client_shares in revealed.items()
            if (value := getattr(client_shares, kind).get(owner)) is not None
        }
        if len(shares) < threshold:
            raise RoundError(
                f"{len(shares)} clients revealed their share of a secret, expected {threshold}; more clients "
                "must answer"
            )
        try:
            recovered = combine_shares(shares, threshold, SEED_BYTES)
        except RoundError:  # The result is longer than a secret, so a share is not genuine
            return b""
        commitment = (
            _hash_sha256(recovered)
            if kind == "seeds"
            else X25519PrivateKey.from_private_bytes(recovered).public_key().public_bytes_raw()
        )
        return (
            recovered
            if commitment == (public[owner].seed if kind == "seeds" else public[owner].mask)
            else b""
        )

    dropped = set(shared) - set(came)
    seeds = {sender: recover_secret("seeds", sender) for sender in sorted(came)}
    keys = {sender: recover_secret("keys", sender) for sender in sorted(dropped)}
    if wrong := [client_id for client_id, content in {**seeds, **keys}.items() if not content]:
        raise InvalidShareError(
            f"the shares sent by {', '.join(wrong)} do not give the advertised keys; they are not genuine",
            wrong,
        )
    minus = list(seeds.values())
    plus = list[bytes]()
    for other, key in keys.items():
        for client_id in sorted(came):
            seed = _derive_shared_key(key, public[client_id].mask, f"{binding} mask")
            (minus if other > client_id else plus).append(seed)
    return add_masks(total, plus, minus)


def _assign_points(public: Mapping[str, PublicKeys]) -> dict[str, int]:
    return {client_id: point for point, client_id in enumerate(sorted(public), 1)}


def _derive_shared_key(private: bytes, public: bytes, info: str) -> bytes:
    exchanged = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )
    return HKDF(SHA256(), SEED_BYTES, None, info.encode()).derive(exchanged)


def _encode_route(binding: str, sender: str, receiver: str) -> bytes:
    return f"{binding}\n{sender}\n{receiver}".encode()


def _digest(route: bytes, share: bytes) -> bytes:
    return _hash_sha256(route + b"\n" + share)


def _hash_sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
