"""A sum of clients' vectors by pairwise masks, of which the aggregator learns nothing else.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, figure 4. Its
consistency check is in `participant`. Clients draw fresh keys in each attempt; clients u < v by id:

    advertise  u -> all          two public keys (one to encrypt to u, one to agree on masks with u), and the
                                 digest of u's seed
    share      u -> v, sealed    a Shamir share of u's private mask key, and one of the seed of u's own mask
                                 b_u; in the clear their digests
    mask       u -> aggregator   y_u = x_u + m(b_u) + sum_{v > u} m(s_uv) - sum_{v < u} m(s_uv)
                                 modulo 2^64, over all v that shared
    reveal     u -> aggregator   of each v whose y_v came its share of b_v, of each other v its share of the
                                 mask key; never both
    unmask     aggregator        takes off m(b_v) of those that came, and what is left of the masks with
                                 those that did not

m is a ChaCha20 keystream, s_uv comes from X25519 by HKDF-SHA256, shares are sealed by AES-256-GCM. `binding`
names federation, round, models and the list of all advertised keys (`wire.masked.binding_of`): it is part of
every derived key and digest, so clients that were shown different lists cannot open each other's shares, and
their masks do not cancel.

The digests show who is at fault. A client compares its shares with them before it masks (`open_shares`). The
aggregator compares each revealed share with them (`check_revealed`): a share that does not fit is the fault
of the client that reveals it. Shares that fit, but do not give the advertised key or seed, are the fault of
the client that dealt them (`unmask`).

Functions are pure but for the keys and seeds that they draw from the operating system. The work of a client
grows with the cohort, the aggregator's with its square.
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

from edgefl.errors import RoundError
from edgefl.security.secagg.masking import MIN_MASKED_CLIENTS, FixedPointVector, add_masks
from edgefl.security.secagg.shamir import PRIME, SHARE_BYTES, combine_shares, split_secret
from edgefl.wire.masked import MAX_MASKED_CLIENTS

SEED_BYTES = 32
DIGEST_BYTES = 32


class InvalidShareError(RoundError):
    """Shares that do not fit what their sender committed to. client_ids: who is at fault, sorted."""

    def __init__(self, message: str, client_ids: Collection[str]) -> None:
        super().__init__(message)
        self.client_ids = tuple(sorted(client_ids))


@dataclass(frozen=True)
class PublicKeys:
    """What a client advertises; 32 bytes each. seal: to encrypt to it; mask: to agree on masks with it; seed:
    sha256 of its own seed.
    """

    seal: bytes
    mask: bytes
    seed: bytes


@dataclass(frozen=True)
class Secrets:
    """What a client keeps for one round and must not use in another; repr says nothing of it."""

    seal: bytes
    mask: bytes
    self_seed: bytes

    def __repr__(self) -> str:
        return "Secrets(...)"


@dataclass(frozen=True)
class OpenedShares:
    """The two shares that a client dealt to another, of its mask key and of its seed.

    Repr does not show them.
    """

    key: int
    seed: int

    def __repr__(self) -> str:
        return "Opened(...)"


@dataclass(frozen=True)
class RevealedShares:
    """A client's shares, by the client that they are of: of its own mask's seed, or of its mask key."""

    seeds: Mapping[str, int]
    keys: Mapping[str, int]


def count_extra_bytes(vector_size: int, values: int, clients: int, threshold: int) -> tuple[int, int]:
    """Return what a client sends (up) and receives (down) above one float32 a value, in bytes, without the
    messages' headers.
    """
    keys = 96
    signature = 64
    sealed = 2 * DIGEST_BYTES + 12 + 2 * SHARE_BYTES + 16
    up = 8 * vector_size - 4 * values + keys + clients * sealed + signature + clients * SHARE_BYTES
    return up, clients * (keys + sealed) + threshold * signature


def find_min_threshold(clients: int) -> int:
    """Return the smallest threshold: more than half, so that no two groups can be asked for different things
    of one client.
    """
    return clients // 2 + 1


def generate_keys() -> tuple[Secrets, PublicKeys]:
    """Return a client's fresh secrets and its public keys."""
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
    """Raise ValueError for an X25519 public key of low order: whoever uses it agrees on a secret that
    everybody knows.
    """
    probe = X25519PrivateKey.generate()
    for public in (keys.seal, keys.mask):
        probe.exchange(X25519PublicKey.from_public_bytes(public))


def seal_shares(
    client_secrets: Secrets, client_id: str, public: Mapping[str, PublicKeys], threshold: int, binding: str
) -> dict[str, bytes]:
    """Return one message for each client of `public`, this one included: two digests in the clear, then the
    sealed shares.

    Raises RoundError for fewer than three clients, for too many, or a threshold of not more than half of
    them.
    """
    count = len(public)
    if (
        not MIN_MASKED_CLIENTS <= count <= MAX_MASKED_CLIENTS
        or not find_min_threshold(count) <= threshold <= count
    ):
        raise RoundError(
            f"a secure sum of {count} clients with threshold {threshold}, expected {MIN_MASKED_CLIENTS} to "
            f"{MAX_MASKED_CLIENTS} clients and a threshold of {find_min_threshold(count)} to {count}; raise "
            "clients_per_round"
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
    """Open what each client sent to this one by `share`.

    Returns:
        The shares, by the client that dealt them, and the ids, sorted, of the clients whose message is not
        genuine.
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
    """Return the words under all masks: towards each client in `shared`, whose sealed shares came, and its
    own.
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
    """Return what the aggregator needs to unmask the sum of the clients in `came`.

    A client does so once in an attempt.

    opened: the shares of each client that shared, from `open_shares`. Raises RoundError for a sum of fewer
    clients than the threshold, of clients that did not share, or without this client.
    """
    if len(set(came)) < threshold or not set(came) <= set(opened) or client_id not in came:
        raise RoundError(
            f"{client_id} is asked to unmask a sum of {len(set(came))} clients, expected {threshold} or more "
            "of those that shared, itself among them; nothing is revealed"
        )
    return RevealedShares(
        {other: shares.seed for other, shares in opened.items() if other in came},
        {other: shares.key for other, shares in opened.items() if other not in came},
    )


def check_revealed(
    client_id: str, revealed: RevealedShares, digests: Mapping[str, bytes], binding: str
) -> None:
    """Raise NotGenuine, naming this client, unless it revealed the shares that were dealt to it.

    digests: the two digests in the clear at the head of each message to this client, 64 bytes, by the client
    that dealt the shares.
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
            f"{client_id} sent a share that is not the one dealt to it by {', '.join(sorted(wrong))}",
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
    """Return the sum of the words of the clients in `came`, from the sum of what they sent masked.

    Raises NotGenuine, naming the clients that dealt them, when shares do not give an advertised key or seed:
    provided that each client revealed what was dealt to it (`check_revealed`). Raises RoundError when fewer
    clients than the threshold revealed their shares.
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
                f"{len(shares)} shares of a secret, expected {threshold}; more clients have to answer"
            )
        try:
            recovered = combine_shares(shares, threshold, SEED_BYTES)
        except RoundError:  # it has more bytes than any secret has
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
            f"the shares that {', '.join(wrong)} dealt are not those of the advertised keys; not genuine",
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
