"""An aggregator that shows devices different lists, played against the devices' own code: enrolled, all
signatures and vouchers checked.

Only what devices answer is used. Every attack ends with the victim's single update, or with nothing.
"""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgefl.errors import EdgeflError
from edgefl.security.authority import create_enrolment, create_key_directory
from edgefl.security.secagg.masking import expand_mask
from edgefl.security.secagg.participant import Participant, from_advertised
from edgefl.security.secagg.shamir import SHARE_BYTES, combine_shares
from edgefl.security.trust import DeviceKeys, Trust
from edgefl.wire import masked
from edgefl.wire.masked import (
    MASK_STEP,
    SEALED_BYTES,
    SHARE_STEP,
    UNMASK_STEP,
    Advertised,
    Introduced,
    encode_ids,
    encode_inbox,
    encode_keys,
    split_blob,
)
from edgefl.wire.strict_json import decode_json

CONTEXT = "c0ffee"
AGREE = getattr(masked, "AGREE_STEP", "")
SIZE = 5


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Return the trust of twelve enrolled devices, the authority, and what introduces a device to the
    others.
    """
    directory = tmp_path_factory.mktemp("keys")
    create_key_directory(directory, ["localhost"], 8883, 30)
    enrolled = {f"pi-{i:02}": create_enrolment(directory, f"pi-{i:02}", 30) for i in range(12)}
    trusts = {client_id: Trust("kitchen", each.signing_key) for client_id, each in enrolled.items()}
    return trusts, enrolled["pi-00"].ca, DeviceKeys(directory).find_introduction


class Liar:
    """The aggregator; it relays as it likes and keeps every answer."""

    def __init__(self, fleet, ids):
        trusts, authority, introduce = fleet
        self.ids = ids
        self.clients = {
            client_id: Participant(client_id, CONTEXT, trusts[client_id], authority) for client_id in ids
        }
        told = {
            client_id: decode_json(Advertised, each.advertise()) for client_id, each in self.clients.items()
        }
        self.public = {client_id: from_advertised(each) for client_id, each in told.items()}
        self.introduced = {
            client_id: Introduced(each, *introduce(client_id)) for client_id, each in told.items()
        }
        rng = np.random.default_rng(len(ids))
        self.words = {client_id: rng.integers(0, 2**62, SIZE, np.uint64) for client_id in ids}
        self.refusals = []

    def ask(self, client_id, step, asked):
        try:
            return self.clients[client_id].answer(step, asked, lambda: self.words[client_id])
        except EdgeflError as error:
            self.refusals.append(str(error))
            return None

    def shares(self, client_id, shown):
        """Return what a client seals when it is shown these clients' keys."""
        blob = self.ask(client_id, SHARE_STEP, encode_keys([self.introduced[other] for other in shown]))
        return dict(zip(shown, split_blob(blob, len(shown), SEALED_BYTES), strict=True))

    def masked(self, client_id, inbox):
        blob = self.ask(client_id, MASK_STEP, encode_inbox(inbox))
        return np.frombuffer(blob, "<u8") if blob and len(blob) == 8 * SIZE else None

    def revealed(self, client_id, inbox, came):
        """Return one share of each client of the inbox: of its seed when it came, else of its mask key."""
        blob = self.ask(client_id, UNMASK_STEP, encode_ids(came))
        return (
            dict(
                zip(
                    sorted(inbox), map(int.from_bytes, split_blob(blob, len(inbox), SHARE_BYTES)), strict=True
                )
            )
            if blob
            else None
        )

    def revealed_by_all(self, came):
        """Ask each client to unmask with a list of its own of whose words came; all clients shared.

        Where clients have to agree first, each gets what others said of its list.
        """
        if AGREE:
            from edgefl.wire.masked import Agreed, encode_agreed, encode_lists

            lists = {client_id: encode_lists(self.ids, came[client_id]) for client_id in self.ids}
            told = {client_id: self.ask(client_id, AGREE, lists[client_id]) for client_id in self.ids}
            agreed = {client_id: decode_json(Agreed, blob) for client_id, blob in told.items()}
            same = {
                one: [agreed[other] for other in self.ids if lists[other] == lists[one]] for one in self.ids
            }
            blobs = {
                client_id: self.ask(client_id, UNMASK_STEP, encode_agreed(lists[client_id], same[client_id]))
                for client_id in self.ids
            }
        else:
            blobs = {
                client_id: self.ask(client_id, UNMASK_STEP, encode_ids(came[client_id]))
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

    def agreed(self, private, other):
        exchanged = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(self.public[other].mask)
        )
        return HKDF(SHA256(), 32, None, f"{CONTEXT} mask".encode()).derive(exchanged)


def take_one_update(liar, victim, helper, other):
    """Show the victim three clients (threshold 2), all others everyone; return the victim's words, None when
    a device refuses.

    The victim masks towards the helper alone. The two of them reveal the victim's seed; the others, who are
    told that the helper did not come, reveal the helper's mask key.
    """
    everyone = sorted(liar.ids)
    few = sorted([victim, helper, other])
    sealed = {
        client_id: liar.shares(client_id, few if client_id == victim else everyone) for client_id in everyone
    }
    pair = sorted([victim, helper])
    masked = liar.masked(victim, {client_id: sealed[client_id][victim] for client_id in pair})
    of_seed = liar.revealed(victim, pair, pair)
    liar.masked(helper, {client_id: sealed[client_id][helper] for client_id in everyone})
    of_all = liar.revealed(helper, everyone, everyone)
    of_key = {}
    known = [client_id for client_id in everyone if client_id != victim]
    for place, client_id in enumerate(everyone, 1):
        if client_id not in pair:
            liar.masked(client_id, {each: sealed[each][client_id] for each in known})
            if answer := liar.revealed(client_id, known, [each for each in known if each != helper]):
                of_key[place] = answer[helper]
    if masked is None or of_seed is None or of_all is None:
        return None
    places = {client_id: place for place, client_id in enumerate(few, 1)}
    seed = combine_shares({places[victim]: of_seed[victim], places[helper]: of_all[victim]}, 2, 32)
    key = combine_shares(of_key, -(-2 * len(everyone) // 3), 32)
    towards = expand_mask(liar.agreed(key, victim), SIZE)
    return masked - expand_mask(seed, SIZE) - (towards if helper > victim else -towards)


@pytest.mark.parametrize("count", [6, 9, 10, 12])
def test_different_key_lists_give_no_clients_update(fleet, count):
    ids = [f"pi-{i:02}" for i in range(count)]
    liar = Liar(fleet, ids)
    found = take_one_update(liar, *ids[:3])
    assert found is None or not (found == liar.words[ids[0]]).all(), (
        "the aggregator has the exact update of one client"
    )
    assert found is None


@pytest.mark.parametrize("changed", ["fewer clients", "other keys of one client"])
def test_clients_that_were_shown_different_lists_cannot_open_each_others_shares(fleet, changed):
    ids = [f"pi-{i:02}" for i in range(6)]
    liar = Liar(fleet, ids)
    other = Liar(fleet, ids)
    introduced = dict(liar.introduced)
    if changed == "fewer clients":
        del introduced["pi-05"]
    else:
        introduced["pi-05"] = other.introduced["pi-05"]
    sealed = {client_id: liar.shares(client_id, ids) for client_id in ids[1:]}
    blob = liar.ask("pi-00", SHARE_STEP, encode_keys(list(introduced.values())))
    sealed["pi-00"] = dict(zip(introduced, split_blob(blob, len(introduced), SEALED_BYTES), strict=True))
    for client_id in ("pi-00", "pi-01"):  # no inbox of five, the threshold being 4, has words of either
        assert liar.masked(client_id, {each: sealed[each][client_id] for each in ids[:5]}) is None


def test_different_lists_of_whose_words_came_give_no_sum_of_half_the_clients(fleet):
    """Six clients, threshold 4. Each of the first three is told that two of the last three did not come, each
    of the last three that the other two did not.

    So all clients reveal the seeds of the first three, and four of them the mask key of each other: the sum
    of three clients, where the threshold promises four.
    """
    ids = [f"pi-{i:02}" for i in range(6)]
    first = ids[:3]
    rest = ids[3:]
    liar = Liar(fleet, ids)
    sealed = {client_id: liar.shares(client_id, ids) for client_id in ids}
    words = {
        client_id: liar.masked(client_id, {other: sealed[other][client_id] for other in ids})
        for client_id in ids
    }
    kept = dict(zip(first, rest, strict=True)) | {client_id: client_id for client_id in rest}
    came = {client_id: sorted([*first, kept[client_id]]) for client_id in ids}
    revealed = liar.revealed_by_all(came)
    places = {client_id: place for place, client_id in enumerate(ids, 1)}
    total = sum((words[client_id] for client_id in first), np.zeros(SIZE, np.uint64))
    if revealed:
        for client_id in first:
            total = total - expand_mask(
                combine_shares({places[who]: shares[client_id] for who, shares in revealed.items()}, 4, 32),
                SIZE,
            )
        for other in rest:
            of_key = {
                places[who]: shares[other] for who, shares in revealed.items() if other not in came[who]
            }
            key = combine_shares(of_key, 4, 32)
            for client_id in first:
                pair = expand_mask(liar.agreed(key, client_id), SIZE)
                total = total - pair if other > client_id else total + pair
    wanted = sum((liar.words[client_id] for client_id in first), np.zeros(SIZE, np.uint64))
    assert not (total == wanted).all(), (
        "the aggregator has the sum of three clients, and the threshold is four"
    )
    assert revealed == {}
