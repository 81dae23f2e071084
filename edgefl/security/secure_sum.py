"""A sum of clients' vectors of which the aggregator learns nothing else: pairwise masks, and shares for those who drop out.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, figure 4, for an aggregator that is
curious but keeps to the protocol, so without its signatures and its consistency check. Fresh keys in each round; clients u < v by id:

    advertise  u -> all          two public keys: one to encrypt to u, one to agree on masks with u
    share      u -> v, sealed    a Shamir share of u's private mask key, and one of the seed of u's own mask b_u
    mask       u -> aggregator   y_u = x_u + m(b_u) + sum_{v > u} m(s_uv) - sum_{v < u} m(s_uv)   modulo 2^64, over all v that shared
    reveal     u -> aggregator   of each v whose y_v came its share of b_v, of each other v its share of the mask key; never both
    unmask     the aggregator takes off m(b_v) of those that came, and what is left of the masks with those that did not

m is a ChaCha20 keystream, s_uv comes from X25519 by HKDF-SHA256, shares are sealed by AES-256-GCM. Functions are pure but for the keys
and seeds that they draw from the operating system. Each client works as much as the cohort is large, the aggregator with its square.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgefl.errors import RoundError
from edgefl.security.masking import LEAST_CLIENTS, MOST_CLIENTS, Words, added
from edgefl.security.shamir import SHARE_BYTES, combine, split

SEED_BYTES = 32


@dataclass(frozen=True)
class PublicKeys:
    """What a client advertises; 32 bytes each. seal: to encrypt to it; mask: to agree on masks with it."""

    seal: bytes
    mask: bytes


@dataclass(frozen=True)
class Secrets:
    """What a client keeps for one round and must not use in another; repr says nothing of it."""

    seal: bytes
    mask: bytes
    own_seed: bytes

    def __repr__(self) -> str:
        return "Secrets(...)"


@dataclass(frozen=True)
class Revealed:
    """A client's shares, by the client that they are of: of its own mask's seed, or of its mask key."""

    seeds: Mapping[str, int]
    keys: Mapping[str, int]


def extra_bytes(words: int, values: int, clients: int) -> tuple[int, int]:
    """Return what a client sends (up) and receives (down) above one float32 a value, in bytes, without the messages' headers."""
    sealed = 12 + 2 * SHARE_BYTES + 16
    up = 8 * words - 4 * values + 64 + clients * sealed + clients * SHARE_BYTES
    return up, clients * (64 + sealed)


def least_threshold(clients: int) -> int:
    """Return the smallest threshold: more than half, so that no two groups can be asked for different things of one client."""
    return clients // 2 + 1


def advertise() -> tuple[Secrets, PublicKeys]:
    """Return a client's fresh secrets and what it tells of them."""
    seal, mask = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    kept = Secrets(seal.private_bytes_raw(), mask.private_bytes_raw(), secrets.token_bytes(SEED_BYTES))
    return kept, PublicKeys(seal.public_key().public_bytes_raw(), mask.public_key().public_bytes_raw())


def share(own: Secrets, client_id: str, public: Mapping[str, PublicKeys], threshold: int, context: str) -> dict[str, bytes]:
    """Return one sealed message for each client of `public`, itself too. `context` names federation and round.

    Raises RoundError for fewer than three clients, for too many, or a threshold of not more than half of them.
    """
    count = len(public)
    if not LEAST_CLIENTS <= count <= MOST_CLIENTS or not least_threshold(count) <= threshold <= count:
        raise RoundError(
            f"a secure sum of {count} clients with threshold {threshold}, expected {LEAST_CLIENTS} to {MOST_CLIENTS} clients and a "
            f"threshold of {least_threshold(count)} to {count}; raise clients_per_round"
        )
    places = _places(public)
    of_key, of_seed = (split(secret, places.values(), threshold) for secret in (own.mask, own.own_seed))
    messages = {}
    for other, keys in public.items():
        both = b"".join(each[places[other]].to_bytes(SHARE_BYTES) for each in (of_key, of_seed))
        key, nonce = _agreed(own.seal, keys.seal, f"{context} seal"), secrets.token_bytes(12)
        messages[other] = nonce + AESGCM(key).encrypt(nonce, both, _route(context, client_id, other))
    return messages


def mask_words(
    own: Secrets, client_id: str, public: Mapping[str, PublicKeys], shared: Collection[str], words: Words, context: str
) -> Words:
    """Return the words under all masks: towards each client in `shared`, whose sealed shares came, and its own."""
    seeds = {other: _agreed(own.mask, public[other].mask, f"{context} mask") for other in shared if other != client_id}
    plus = [own.own_seed, *(seed for other, seed in seeds.items() if other > client_id)]
    return added(words, plus, (seed for other, seed in seeds.items() if other < client_id))


def reveal(
    own: Secrets, client_id: str, public: Mapping[str, PublicKeys], inbox: Mapping[str, bytes], came: Collection[str], threshold: int,
    context: str,
) -> Revealed:  # fmt: skip
    """Return what the aggregator needs to unmask the sum of the clients in `came`. A client does so once a round.

    inbox: the sealed message of each client that shared. Raises RoundError for a sum of fewer than the threshold, of clients that did
    not share or without this one, and for a message that is not genuine.
    """
    if len(set(came)) < threshold or not set(came) <= set(inbox) or client_id not in came:
        raise RoundError(
            f"{client_id} is asked to unmask a sum of {len(set(came))} clients, expected {threshold} or more of those that shared, itself "
            "among them; nothing is revealed"
        )
    seeds, keys = {}, {}
    for other, message in inbox.items():
        key = _agreed(own.seal, public[other].seal, f"{context} seal")
        try:
            both = AESGCM(key).decrypt(message[:12], message[12:], _route(context, other, client_id))
        except (InvalidTag, ValueError) as error:
            raise RoundError(f"the shares of {other} for {client_id} are not genuine, expected what it sealed; leave it out") from error
        if other in came:
            seeds[other] = int.from_bytes(both[SHARE_BYTES:])
        else:
            keys[other] = int.from_bytes(both[:SHARE_BYTES])
    return Revealed(seeds, keys)


def unmask(
    total: Words, public: Mapping[str, PublicKeys], shared: Collection[str], came: Collection[str], revealed: Mapping[str, Revealed],
    threshold: int, context: str,
) -> Words:  # fmt: skip
    """Return the sum of the words of the clients in `came`, from the sum of what they sent masked.

    Raises RoundError when fewer than the threshold revealed their shares, or these do not fit.
    """
    places = _places(public)

    def secret(kind: str, of: str) -> bytes:
        shares = {places[who]: told for who, each in revealed.items() if (told := getattr(each, kind).get(of)) is not None}
        return combine(shares, threshold, SEED_BYTES)

    minus = [secret("seeds", client_id) for client_id in sorted(came)]
    plus: list[bytes] = []
    for gone in sorted(set(shared) - set(came)):
        key = secret("keys", gone)
        if X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw() != public[gone].mask:
            raise RoundError(f"the shares of {gone}'s key do not give it; one of them is not genuine")
        for client_id in sorted(came):
            seed = _agreed(key, public[client_id].mask, f"{context} mask")
            (minus if gone > client_id else plus).append(seed)
    return added(total, plus, minus)


def _places(public: Mapping[str, PublicKeys]) -> dict[str, int]:
    return {client_id: place for place, client_id in enumerate(sorted(public), 1)}


def _agreed(private: bytes, public: bytes, info: str) -> bytes:
    exchanged = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), SEED_BYTES, None, info.encode()).derive(exchanged)


def _route(context: str, sender: str, receiver: str) -> bytes:
    return f"{context}\n{sender}\n{receiver}".encode()
