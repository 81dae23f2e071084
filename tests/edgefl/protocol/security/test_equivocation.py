"""An aggregator that sends different lists to devices, against the real code of enrolled devices.

The devices check all signatures and vouchers. The attacks use only the answers of devices. They try to reveal
a single update, or the sum of too few updates.
"""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgefl.base.errors import EdgeflError
from edgefl.protocol.security.authority import create_enrolment, create_key_directory
from edgefl.protocol.security.secagg.masking import expand_mask
from edgefl.protocol.security.secagg.participant import Participant, from_advertised
from edgefl.protocol.security.secagg.shamir import SHARE_BYTES, combine_shares
from edgefl.protocol.security.trust import DeviceKeys, Trust
from edgefl.protocol.wire.masked import (
    AGREE_STEP,
    MASK_STEP,
    SEALED_BYTES,
    SHARE_STEP,
    UNMASK_STEP,
    Advertised,
    Agreed,
    Introduced,
    decode_complaint,
    encode_agreed,
    encode_inbox,
    encode_keys,
    encode_lists,
    split_blob,
)
from edgefl.protocol.wire.strict_json import decode_json

CONTEXT = "c0ffee"
SIZE = 5


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Return the trust of twelve enrolled devices, the authority, and a function that introduces a device."""
    directory = tmp_path_factory.mktemp("keys")
    create_key_directory(directory, ["localhost"], 8883, 30)
    enrolled = {f"pi-{i:02}": create_enrolment(directory, f"pi-{i:02}", 30) for i in range(12)}
    trusts = {
        client_id: Trust(federation="kitchen", key=each.signing_key) for client_id, each in enrolled.items()
    }
    return trusts, enrolled["pi-00"].ca, DeviceKeys(directory).find_introduction


class LyingAggregator:
    """A dishonest aggregator. It relays any messages to any clients and stores all answers."""

    def __init__(self, fleet, ids):
        trusts, authority, introduce = fleet
        self.ids = ids
        self.clients = {
            client_id: Participant(client_id, CONTEXT, trusts[client_id], authority) for client_id in ids
        }
        advertised = {
            client_id: decode_json(Advertised, each.advertise()) for client_id, each in self.clients.items()
        }
        self.public = {client_id: from_advertised(each) for client_id, each in advertised.items()}
        self.introduced = {
            client_id: Introduced(each, *introduce(client_id)) for client_id, each in advertised.items()
        }
        rng = np.random.default_rng(len(ids))
        self.vectors = {client_id: rng.integers(0, 2**62, SIZE, np.uint64) for client_id in ids}
        self.refusals = []

    def ask(self, client_id, step, payload):
        try:
            return self.clients[client_id].answer(step, payload, lambda: self.vectors[client_id])
        except EdgeflError as error:
            self.refusals.append(str(error))
            return None

    def request_shares(self, client_id, key_owners):
        """Return the shares that a client seals when it receives the keys of these clients."""
        blob = self.ask(client_id, SHARE_STEP, encode_keys([self.introduced[other] for other in key_owners]))
        return dict(zip(key_owners, split_blob(blob, len(key_owners), SEALED_BYTES), strict=True))

    def request_masked(self, client_id, inbox):
        blob = self.ask(client_id, MASK_STEP, encode_inbox(inbox))
        return np.frombuffer(blob, "<u8") if blob and len(blob) == 8 * SIZE else None

    def request_revealed_from_all(self, survivors):
        """Ask each client to unmask with a separate list of survivors. All clients shared their secrets.

        Each client receives the agreements of the clients that received the same list.
        """
        lists = {client_id: encode_lists(self.ids, survivors[client_id]) for client_id in self.ids}
        answers = {client_id: self.ask(client_id, AGREE_STEP, lists[client_id]) for client_id in self.ids}
        agreed = {client_id: decode_json(Agreed, blob) for client_id, blob in answers.items()}
        agreements = {
            one: [agreed[other] for other in self.ids if lists[other] == lists[one]] for one in self.ids
        }
        blobs = {
            client_id: self.ask(
                client_id, UNMASK_STEP, encode_agreed(lists[client_id], agreements[client_id])
            )
            for client_id in self.ids
        }
        parts = {
            client_id: split_blob(blob, len(self.ids), SHARE_BYTES)
            for client_id, blob in blobs.items()
            if blob
        }
        return {
            client_id: dict(zip(self.ids, map(int.from_bytes, each), strict=True))
            for client_id, each in parts.items()
        }

    def derive_mask_seed(self, private, other):
        exchanged = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(self.public[other].mask)
        )
        return HKDF(SHA256(), 32, None, f"{CONTEXT} mask".encode()).derive(exchanged)


def test_honest_aggregator_gets_masked_vectors_and_shares(fleet):
    """The attacks below fail because devices refuse them, not because the aggregator here cannot ask."""
    ids = [f"pi-{i:02}" for i in range(6)]
    aggregator = LyingAggregator(fleet, ids)
    sealed = {client_id: aggregator.request_shares(client_id, ids) for client_id in ids}
    for client_id in ids:
        masked = aggregator.request_masked(client_id, {other: sealed[other][client_id] for other in ids})
        assert masked is not None and not (masked == aggregator.vectors[client_id]).any()
    revealed = aggregator.request_revealed_from_all(dict.fromkeys(ids, ids))
    assert {client_id: shares.keys() for client_id, shares in revealed.items()} == {
        client_id: set(ids) for client_id in ids
    }
    assert aggregator.refusals == []


@pytest.mark.parametrize("count", [6, 9, 10, 12])
def test_client_with_a_shorter_key_list_sends_no_masked_vector(fleet, count):
    """The victim gets the keys of three clients, so that it has a pairwise mask only with the witness.

    The witness gets the keys of all. Its share for the victim is bound to that list. The victim cannot open
    the share and complains.
    """
    ids = [f"pi-{i:02}" for i in range(count)]
    victim, witness = ids[:2]
    aggregator = LyingAggregator(fleet, ids)
    of_victim = aggregator.request_shares(victim, ids[:3])
    of_witness = aggregator.request_shares(witness, ids)
    inbox = {victim: of_victim[victim], witness: of_witness[victim]}
    answer = aggregator.ask(victim, MASK_STEP, encode_inbox(inbox))
    assert decode_complaint(answer) == (witness,)


@pytest.mark.parametrize("changed", ["fewer clients", "other keys of one client"])
def test_clients_with_different_key_lists_cannot_open_each_others_shares(fleet, changed):
    ids = [f"pi-{i:02}" for i in range(6)]
    aggregator = LyingAggregator(fleet, ids)
    other = LyingAggregator(fleet, ids)
    introduced = dict(aggregator.introduced)
    if changed == "fewer clients":
        del introduced["pi-05"]
    else:
        introduced["pi-05"] = other.introduced["pi-05"]
    sealed = {client_id: aggregator.request_shares(client_id, ids) for client_id in ids[1:]}
    blob = aggregator.ask("pi-00", SHARE_STEP, encode_keys(list(introduced.values())))
    sealed["pi-00"] = dict(zip(introduced, split_blob(blob, len(introduced), SEALED_BYTES), strict=True))
    for client_id in ("pi-00", "pi-01"):  # with a threshold of 4, neither masks for an inbox of five
        assert (
            aggregator.request_masked(client_id, {each: sealed[each][client_id] for each in ids[:5]}) is None
        )


def test_different_survivor_lists_reveal_no_sum_of_half_the_clients(fleet):
    """Six clients have threshold 4. The list of each client has the first three and one of the last three.

    So all clients reveal the seeds of the first three, and four clients reveal each other mask key.
    The result is the sum of three clients, although the threshold promises four.
    """
    ids = [f"pi-{i:02}" for i in range(6)]
    first = ids[:3]
    rest = ids[3:]
    aggregator = LyingAggregator(fleet, ids)
    sealed = {client_id: aggregator.request_shares(client_id, ids) for client_id in ids}
    vectors = {
        client_id: aggregator.request_masked(client_id, {other: sealed[other][client_id] for other in ids})
        for client_id in ids
    }
    last_survivor = dict(zip(first, rest, strict=True)) | {client_id: client_id for client_id in rest}
    survivors = {client_id: sorted([*first, last_survivor[client_id]]) for client_id in ids}
    revealed = aggregator.request_revealed_from_all(survivors)
    places = {client_id: place for place, client_id in enumerate(ids, 1)}
    total = sum((vectors[client_id] for client_id in first), np.zeros(SIZE, np.uint64))
    if revealed:
        for client_id in first:
            total = total - expand_mask(
                combine_shares(
                    {places[revealer]: shares[client_id] for revealer, shares in revealed.items()}, 4, 32
                ),
                SIZE,
            )
        for other in rest:
            of_key = {
                places[revealer]: shares[other]
                for revealer, shares in revealed.items()
                if other not in survivors[revealer]
            }
            key = combine_shares(of_key, 4, 32)
            for client_id in first:
                pair = expand_mask(aggregator.derive_mask_seed(key, client_id), SIZE)
                total = total - pair if other > client_id else total + pair
    expected = sum((aggregator.vectors[client_id] for client_id in first), np.zeros(SIZE, np.uint64))
    assert not (total == expected).all(), (
        "the aggregator has the sum of three clients, and the threshold is four"
    )
    assert revealed == {}
