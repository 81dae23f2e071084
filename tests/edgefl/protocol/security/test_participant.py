"""A client's part of a masked round: each step once, one of two secrets, and keys with a voucher."""

import contextlib
import hashlib
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import RoundError, WireError
from edgefl.protocol.security import authority
from edgefl.protocol.security.authority import create_enrolment, create_key_directory, revoke_enrolment
from edgefl.protocol.security.enrolled_devices import list_ending_vouchers, load_enrolled_devices
from edgefl.protocol.security.secagg.participant import (
    Participant,
    decode_revealed,
    from_advertised,
    to_advertised,
)
from edgefl.protocol.security.secagg.secure_sum import RevealedShares, generate_keys, unmask_sum
from edgefl.protocol.security.trust import DeviceKeys, Trust
from edgefl.protocol.wire.masked import (
    AGREE_STEP,
    MASK_STEP,
    SEALED_BYTES,
    SHARE_BYTES,
    SHARE_STEP,
    UNMASK_STEP,
    Advertised,
    Agreed,
    Introduced,
    decode_agreed,
    decode_complaint,
    decode_ids,
    decode_inbox,
    decode_keys,
    decode_lists,
    encode_agreed,
    encode_complaint,
    encode_inbox,
    encode_keys,
    encode_lists,
    hash_binding,
    hash_context,
    make_step_nonce,
    parse_attempt,
    split_blob,
)
from edgefl.protocol.wire.messages import Task
from edgefl.protocol.wire.strict_json import decode_json

CONTEXT = "c0ffee"
IDS = ("pi-0", "pi-1", "pi-2", "pi-3")
VECTORS = {client_id: np.array([i, 2**63 + i, 7], np.uint64) for i, client_id in enumerate(IDS)}


class Relay:
    """An honest aggregator that relays the messages of participants."""

    def __init__(self, ids=IDS, trusts=None, authority="", introduce=lambda client_id: ("", "")):
        trusts = trusts or {client_id: Trust(federation="kitchen") for client_id in ids}
        self.clients = {
            client_id: Participant(client_id, CONTEXT, trusts[client_id], authority) for client_id in ids
        }
        self.advertised = {
            client_id: decode_json(Advertised, each.advertise()) for client_id, each in self.clients.items()
        }
        self.introduced = [Introduced(self.advertised[client_id], *introduce(client_id)) for client_id in ids]

    def ask(self, client_id, step, payload):
        return self.clients[client_id].answer(step, payload, lambda: VECTORS[client_id])

    def share(self):
        keys = encode_keys(self.introduced)
        return {
            client_id: split_blob(self.ask(client_id, SHARE_STEP, keys), len(self.clients), SEALED_BYTES)
            for client_id in self.clients
        }

    def play_first_steps(self, ids=IDS):
        """Let all clients share their secrets and these clients mask their vectors."""
        sealed = self.share()
        return {
            client_id: self.ask(client_id, MASK_STEP, self.make_inbox(sealed, client_id, IDS))
            for client_id in ids
        }

    def make_agreement(self, lists, client_ids):
        """Return the payload of `unmask` with the agreements of these clients."""
        return encode_agreed(
            lists, [decode_json(Agreed, self.ask(client_id, AGREE_STEP, lists)) for client_id in client_ids]
        )

    def make_inbox(self, sealed, client_id, shared):
        place = sorted(self.clients).index(client_id)
        return encode_inbox({other: sealed[other][place] for other in shared})


def test_sum_is_exact_when_a_client_drops_out_before_masking():
    relay = Relay()
    survivors = ("pi-1", "pi-2", "pi-3")
    vectors = {
        client_id: np.frombuffer(blob, "<u8") for client_id, blob in relay.play_first_steps(survivors).items()
    }
    agreed = relay.make_agreement(encode_lists(IDS, survivors), survivors)
    answers = {c: relay.ask(c, UNMASK_STEP, agreed) for c in ("pi-2", "pi-1", "pi-3")}
    revealed = {c: RevealedShares(*decode_revealed(blob, IDS, survivors)) for c, blob in answers.items()}
    public = {c: from_advertised(message) for c, message in relay.advertised.items()}
    binding = hash_binding(CONTEXT, encode_keys(relay.introduced))
    total = unmask_sum(np.add.reduce(list(vectors.values())), public, IDS, survivors, revealed, 3, binding)
    np.testing.assert_array_equal(total, np.add.reduce([VECTORS[c] for c in survivors]))
    for client_id, masked in vectors.items():
        assert not (masked == VECTORS[client_id]).any()


def test_repeated_step_gets_the_same_answer_unless_clients_change():
    relay = Relay()
    sealed = relay.share()
    keys = encode_keys(relay.introduced)
    assert relay.ask("pi-1", SHARE_STEP, keys) == b"".join(
        sealed["pi-1"]
    )  # although each sealing draws a nonce
    inbox = relay.make_inbox(sealed, "pi-1", IDS)
    fewer = relay.make_inbox(sealed, "pi-1", IDS[:3])
    masked = relay.ask("pi-1", MASK_STEP, inbox)
    assert relay.ask("pi-1", MASK_STEP, inbox) == masked
    with pytest.raises(RoundError, match="asked to mask for other clients than before"):
        relay.ask("pi-1", MASK_STEP, fewer)
    with pytest.raises(RoundError, match="asked to share for other clients than before"):
        relay.ask("pi-1", SHARE_STEP, encode_keys(relay.introduced[:3]))


def test_participants_never_reveal_both_secrets_of_a_client():
    """Clients reveal the seed of pi-0 if it survived, and its mask key if not, but never both."""
    with_pi0 = encode_lists(IDS, IDS)
    without_pi0 = encode_lists(IDS, IDS[1:])
    relay = Relay()
    relay.play_first_steps()
    # pi-3 is not asked to agree, and accepts the agreement of the others
    with_agreed = relay.make_agreement(with_pi0, IDS[:3])
    for client_id in IDS:
        seeds, keys = decode_revealed(relay.ask(client_id, UNMASK_STEP, with_agreed), IDS, IDS)
        assert (set(seeds), set(keys)) == (set(IDS), set())
        with pytest.raises(RoundError, match="asked to agree"):
            relay.ask(client_id, AGREE_STEP, without_pi0)
        with pytest.raises(RoundError, match="asked to unmask for other clients than before"):
            relay.ask(client_id, UNMASK_STEP, encode_agreed(without_pi0, []))
    relay = Relay()
    relay.play_first_steps()
    seeds, keys = decode_revealed(
        relay.ask("pi-2", UNMASK_STEP, relay.make_agreement(without_pi0, IDS[1:])), IDS, IDS[1:]
    )
    assert (set(seeds), set(keys)) == (set(IDS[1:]), {"pi-0"})


def test_lists_without_enough_agreements_reveal_nothing():
    """Two of four clients get lists with pi-0, two get lists without it. Neither reaches three signatures."""
    relay = Relay()
    relay.play_first_steps()
    with_pi0 = encode_lists(IDS, IDS)
    without_pi0 = encode_lists(IDS, IDS[1:])
    agreed_lists = {with_pi0: ("pi-0", "pi-1"), without_pi0: ("pi-2", "pi-3")}
    blobs = {lists: relay.make_agreement(lists, client_ids) for lists, client_ids in agreed_lists.items()}
    for lists, client_ids in agreed_lists.items():
        for client_id in client_ids:
            with pytest.raises(RoundError, match="2 clients agreed to these lists, expected 3"):
                relay.ask(client_id, UNMASK_STEP, blobs[lists])
            with pytest.raises(RoundError, match="asked to agree for other clients than before"):
                relay.ask(client_id, AGREE_STEP, without_pi0 if lists == with_pi0 else with_pi0)
    with pytest.raises(RoundError, match="asked to unmask for other clients than this client agreed to"):
        relay.ask("pi-2", UNMASK_STEP, blobs[with_pi0])
    mixed = sorted(
        [*decode_agreed(blobs[with_pi0])[1], *decode_agreed(blobs[without_pi0])[1]],
        key=lambda each: each.client_id,
    )
    with pytest.raises(RoundError, match="pi-0 agreed to other lists"):
        relay.ask("pi-2", UNMASK_STEP, encode_agreed(without_pi0, mixed))


def test_agreements_to_other_keys_lists_or_clients_are_refused():
    relay = Relay()
    other = Relay()
    relay.play_first_steps()
    other.play_first_steps()
    lists = encode_lists(IDS, IDS[1:])
    good = relay.make_agreement(lists, IDS[1:])
    _, [one, two, three] = decode_agreed(good)
    _, [foreign, *_] = decode_agreed(other.make_agreement(lists, IDS[1:]))
    for wrong in (
        [foreign, two, three],
        [replace(one, lists="0" * 64), two, three],
        [replace(one, client_id="pi-0"), two, three],
    ):
        with pytest.raises(RoundError, match="agreed to other lists than this client received"):
            relay.ask("pi-1", UNMASK_STEP, encode_agreed(lists, wrong))
    with pytest.raises(WireError, match="sorted and unique"):
        relay.ask("pi-1", UNMASK_STEP, encode_agreed(lists, [one, one, two]))
    assert relay.ask("pi-1", UNMASK_STEP, good)


def test_lists_that_contradict_the_inbox_are_refused():
    for lists, match in (
        (encode_lists(IDS, IDS[2:]), "a sum of 2 clients, expected 3 or more"),
        (encode_lists(IDS, IDS[1:]), "this client among them"),
        (encode_lists(IDS, [*IDS[:3], "stranger"]), "3 or more that shared"),
        (encode_lists(IDS[:3], IDS[:3]), "3 clients that shared, expected the 4 clients of the inbox"),
    ):
        relay = Relay()
        relay.play_first_steps()
        with pytest.raises(RoundError, match=match):
            relay.ask("pi-0", AGREE_STEP, lists)
        with pytest.raises(RoundError, match=match):
            relay.ask("pi-0", UNMASK_STEP, encode_agreed(lists, []))


def test_client_with_unreadable_shares_names_senders_and_reveals_nothing():
    relay = Relay()
    sealed = relay.share()
    sealed["pi-2"][0] = sealed["pi-2"][0][:-1] + bytes([sealed["pi-2"][0][-1] ^ 1])
    sealed["pi-3"][0] = sealed["pi-1"][0]
    inbox = relay.make_inbox(sealed, "pi-0", IDS)
    complaint = relay.ask("pi-0", MASK_STEP, inbox)
    assert complaint == b"pi-2 pi-3"
    assert relay.ask("pi-0", MASK_STEP, inbox) == complaint
    with pytest.raises(RoundError, match="asked to mask for other clients than before"):
        relay.ask("pi-0", MASK_STEP, relay.make_inbox({**sealed, "pi-2": sealed["pi-1"]}, "pi-0", IDS))
    for client_id in IDS[1:]:
        assert (
            decode_complaint(relay.ask(client_id, MASK_STEP, relay.make_inbox(sealed, client_id, IDS))) == ()
        )
    agreed = relay.make_agreement(encode_lists(IDS, IDS), IDS[1:])
    with pytest.raises(RoundError, match="expected the 0 clients of the inbox"):
        relay.ask("pi-0", UNMASK_STEP, agreed)


@given(st.sets(st.from_regex("[a-z0-9][a-z0-9-]{0,8}", fullmatch=True), min_size=1, max_size=9))
def test_complaint_never_has_the_length_of_a_masked_vector(ids):
    complaint = encode_complaint(sorted(ids))
    assert len(complaint) % 8
    assert decode_complaint(complaint) == tuple(sorted(ids))


def test_steps_out_of_order_and_short_lists_are_refused():
    relay = Relay()
    with pytest.raises(RoundError, match="asked to mask after 0 of the steps"):
        relay.ask("pi-0", MASK_STEP, b"")
    with pytest.raises(RoundError, match="asked to unmask after 0 of the steps"):
        relay.ask("pi-0", UNMASK_STEP, encode_lists(IDS, IDS))
    with pytest.raises(RoundError, match="a masked sum has 2 clients"):
        relay.ask("pi-0", SHARE_STEP, encode_keys(relay.introduced[:2]))
    sealed = relay.share()
    for shared in (IDS[:2], IDS[1:]):
        with pytest.raises(RoundError, match="3 or more that advertised keys, this client among them"):
            relay.ask("pi-0", MASK_STEP, relay.make_inbox(sealed, "pi-0", shared))


def test_keys_for_another_model_and_forged_keys_are_refused():
    relay = Relay()
    other = replace(relay.introduced[1], advertised=replace(relay.advertised["pi-1"], context="beef"))
    with pytest.raises(RoundError, match="pi-1 advertised keys for another round or another model"):
        relay.ask("pi-0", SHARE_STEP, encode_keys([relay.introduced[0], other, *relay.introduced[2:]]))
    forged = Introduced(to_advertised(generate_keys()[1], "pi-0", CONTEXT))
    with pytest.raises(RoundError, match="the keys of this client in the key list differ"):
        relay.ask("pi-0", SHARE_STEP, encode_keys([forged, *relay.introduced[1:]]))
    # The point of order 1, with which anyone agrees on zeros
    low = Introduced(replace(relay.advertised["pi-1"], seal="A" * 43 + "="))
    with pytest.raises(WireError, match="a key of pi-1 has a low order"):
        relay.ask("pi-0", SHARE_STEP, encode_keys([relay.introduced[0], low, *relay.introduced[2:]]))


def test_man_in_the_middle_aggregator_is_detected(tmp_path):
    create_key_directory(tmp_path, ["localhost"], 8883, 30)
    enrolled = {client_id: create_enrolment(tmp_path, client_id, 30) for client_id in IDS}
    enrolments = DeviceKeys(tmp_path)
    trusts = {
        client_id: Trust(federation="kitchen", key=each.signing_key) for client_id, each in enrolled.items()
    }

    def make_relay():
        return Relay(trusts=trusts, authority=enrolled["pi-0"].ca, introduce=enrolments.find_introduction)

    assert len(make_relay().share()["pi-0"]) == len(IDS)
    attacker_keys = generate_keys()[1]
    honest = make_relay()
    key, voucher = enrolments.find_introduction("pi-1")
    forged = decode_json(
        Advertised, trusts["pi-2"].encode(to_advertised(attacker_keys, "pi-1", CONTEXT), "pi-1")
    )
    for introduced, match in (
        (Introduced(to_advertised(attacker_keys, "pi-1", CONTEXT), key, voucher), "is not signed"),
        (Introduced(forged, key, voucher), "wrong signature"),
        (
            Introduced(forged, load_enrolled_devices(tmp_path)["pi-2"].signing_key, voucher),
            "does not vouch for the key of pi-1",
        ),
        (Introduced(honest.advertised["pi-1"], key, ""), "does not vouch for the key of pi-1"),
    ):
        with pytest.raises(WireError, match=match):
            honest.ask(
                "pi-0", SHARE_STEP, encode_keys([honest.introduced[0], introduced, *honest.introduced[2:]])
            )


DAY_S = 86400.0


def make_enrolled_relay(directory, revoked=()):
    """Return a dishonest relay of enrolled clients, which also relays the vouchers of revoked clients."""
    create_key_directory(directory, ["localhost"], 8883, 30)
    enrolled = {client_id: create_enrolment(directory, client_id, 3650) for client_id in IDS}
    for client_id in revoked:
        revoke_enrolment(directory, client_id)
    devices = load_enrolled_devices(directory)
    trusts = {
        client_id: Trust(federation="kitchen", key=each.signing_key) for client_id, each in enrolled.items()
    }
    return Relay(
        trusts=trusts,
        authority=enrolled["pi-0"].ca,
        introduce=lambda c: (devices[c].signing_key, devices[c].voucher),
    )


def test_voucher_of_a_revoked_device_expires(tmp_path, monkeypatch):
    """A hostile aggregator has key and voucher of a revoked device. Others accept them only for some time."""
    relay = make_enrolled_relay(tmp_path / "keys", ["pi-3"])
    late = make_enrolled_relay(tmp_path / "late", ["pi-3"])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 89 * DAY_S)
    assert len(relay.share()) == len(IDS)
    monkeypatch.setattr(time, "time", lambda: now + 91 * DAY_S)
    with pytest.raises(WireError, match=r"vouched for the key of pi-\d until .*this device's clock shows"):
        late.share()


def test_vouchers_are_renewed_except_for_revoked_devices(tmp_path, monkeypatch):
    make_enrolled_relay(tmp_path, ["pi-3"])
    before = load_enrolled_devices(tmp_path)
    now = time.time()
    assert authority.renew_vouchers(tmp_path, 365) == ("pi-0", "pi-1", "pi-2")
    after = load_enrolled_devices(tmp_path)
    assert [client_id for client_id in IDS if after[client_id].voucher != before[client_id].voucher] == [
        "pi-0",
        "pi-1",
        "pi-2",
    ]
    assert list_ending_vouchers(tmp_path, now + 364 * DAY_S) == ()
    assert list_ending_vouchers(tmp_path, now + 366 * DAY_S) == ("pi-0", "pi-1", "pi-2")
    enrolments = DeviceKeys(tmp_path)
    monkeypatch.setattr(time, "time", lambda: now + 200 * DAY_S)
    assert enrolments.find_introduction("pi-1") == (after["pi-1"].signing_key, after["pi-1"].voucher)
    with pytest.raises(WireError, match="pi-3 was revoked"):
        enrolments.find_introduction("pi-3")
    monkeypatch.setattr(time, "time", lambda: now + 366 * DAY_S)
    with pytest.raises(
        WireError, match=r"voucher for the key of pi-1 ended; renew all vouchers with `edgefl broker vouch`"
    ):
        enrolments.find_introduction("pi-1")


def test_voucher_with_changed_end_is_refused(tmp_path):
    """The end of a voucher is signed. A voucher with another end or without an end is invalid."""
    relay = make_enrolled_relay(tmp_path)
    first, other = relay.introduced[:2]
    until, _, signature = other.voucher.partition(".")
    for voucher in (
        f"{int(until) + 1}.{signature}",
        f"0{until}.x{signature}",
        signature,
        f".{signature}",
        f"-1.{signature}",
        f"{until}.",
    ):
        with pytest.raises(WireError, match="does not vouch for the key of pi-1"):
            relay.ask(
                "pi-0",
                SHARE_STEP,
                encode_keys([first, replace(other, voucher=voucher), *relay.introduced[2:]]),
            )
    assert len(relay.share()) == len(IDS)


def test_enrolled_devices_require_signed_agreements(tmp_path):
    create_key_directory(tmp_path, ["localhost"], 8883, 30)
    enrolled = {client_id: create_enrolment(tmp_path, client_id, 30) for client_id in IDS}
    trusts = {
        client_id: Trust(federation="kitchen", key=each.signing_key) for client_id, each in enrolled.items()
    }
    relay = Relay(
        trusts=trusts, authority=enrolled["pi-0"].ca, introduce=DeviceKeys(tmp_path).find_introduction
    )
    relay.play_first_steps()
    lists = encode_lists(IDS, IDS)
    good = relay.make_agreement(lists, IDS[:3])
    _, [one, two, three] = decode_agreed(good)
    by_another = decode_json(Agreed, trusts["pi-3"].encode(replace(one, signature=""), "pi-0"))
    for wrong, match in ((replace(one, signature=""), "is not signed"), (by_another, "wrong signature")):
        with pytest.raises(WireError, match=match):
            relay.ask("pi-3", UNMASK_STEP, encode_agreed(lists, [wrong, two, three]))
    assert len(relay.ask("pi-3", UNMASK_STEP, good)) == 4 * SHARE_BYTES


def test_missing_voucher_error_explains_renewal(tmp_path):
    create_key_directory(tmp_path, ["localhost"], 8883, 30)
    create_enrolment(tmp_path, "pi-0", 30)
    path = tmp_path / "devices.json"
    path.write_text(path.read_text().replace(load_enrolled_devices(tmp_path)["pi-0"].voucher, ""))
    with pytest.raises(
        WireError,
        match=r"is missing, or was made by an older edgefl; renew all vouchers with `edgefl broker vouch`",
    ):
        DeviceKeys(tmp_path).find_introduction("pi-0")
    assert authority.renew_vouchers(tmp_path, 1) == ("pi-0",)
    assert DeviceKeys(tmp_path).find_introduction("pi-0")[1]


def test_binding_depends_on_context_and_keys():
    """The binding is the sha256 of `c`, a newline and `keys`."""
    assert hash_binding("c", b"keys") == hashlib.sha256(b"c\nkeys").hexdigest()
    keys = encode_keys(Relay().introduced)
    lists = (keys, keys + b" ", keys.replace(b"pi-3", b"pi-4"), encode_keys(Relay().introduced))
    assert len({hash_binding(context, each) for each in lists for context in ("c", "d")}) == 8


def test_context_depends_on_attempt_and_model():
    task = Task(
        session="s",
        round=3,
        phase="federate",
        plan="p",
        models={"global": "ab"},
        scalars={},
        seed=1,
        deadline_s=30.0,
        codec="fp32+masked",
        max_staleness=0,
        budget_s=0.0,
        nonce=make_step_nonce("n1", "advertise"),
        ts=0.0,
    )
    assert parse_attempt(task.nonce) == "n1"
    contexts = {
        hash_context("kitchen", each)
        for each in (
            task,
            replace(task, round=4),
            replace(task, models={"global": "cd"}),
            replace(task, nonce="n2-advertise"),
            replace(task, session="t"),
            replace(task, plan="q"),
            replace(task, scalars={"a": 1.0}),
        )
    } | {hash_context("bath", task)}
    assert len(contexts) == 8
    assert hash_context(
        "kitchen", replace(task, ts=9.0, nonce=make_step_nonce("n1", "share"))
    ) == hash_context("kitchen", task)


@given(st.one_of(st.binary(max_size=400), st.binary(max_size=160).map(lambda rest: b"pi-0 pi-1\n" + rest)))
def test_any_bytes_are_decoded_or_refused(blob):
    for read in (
        decode_ids,
        decode_inbox,
        decode_keys,
        decode_complaint,
        decode_lists,
        decode_agreed,
        lambda each: decode_revealed(each, IDS, IDS[1:]),
    ):
        with contextlib.suppress(WireError):
            read(blob)


@pytest.mark.parametrize(
    ("read", "blob", "match"),
    [
        (decode_ids, b"pi-1 pi-0", "sorted and unique"),
        (decode_ids, b"pi-0 pi-0", "sorted and unique"),
        (decode_ids, b"PI 0", "sorted and unique"),
        (decode_ids, b"", "sorted and unique"),
        (decode_lists, b"pi-0 pi-1", "sorted and unique"),
        (decode_agreed, b"pi-0\npi-0\n{}", "lacks the field"),
        (decode_inbox, b"pi-0 pi-1\n" + bytes(SEALED_BYTES), "224 for each of 2"),
        (decode_keys, b"{}", "a line of 1 parts"),
        (decode_keys, b"{}\t\t", "lacks the field"),
        (decode_keys, b"x" * 9000 + b"\t\t", "a line of 3 parts"),
        (
            lambda blob: from_advertised(
                Advertised(client_id="pi-0", context="c", seal="!", mask="!", seed="!")
            ),
            b"",
            "not base64",
        ),
        (
            lambda blob: from_advertised(
                Advertised(client_id="pi-0", context="c", seal="", mask="", seed="")
            ),
            b"",
            "0, 0, 0 bytes",
        ),
        (lambda blob: decode_revealed(blob, IDS, IDS), bytes(SHARE_BYTES), "66 for each of 4"),
    ],
)
def test_malformed_bytes_are_refused_with_the_reason(read, blob, match):
    with pytest.raises(WireError, match=match):
        read(blob)
