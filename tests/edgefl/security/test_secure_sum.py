"""A masked sum: masks cancel, those who drop out are taken off exactly, and what the aggregator holds tells
nothing else.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import DataError, RoundError, WireError
from edgefl.security.secagg import secure_sum
from edgefl.security.secagg.masking import add_masks, expand_mask, to_mean, to_vector
from edgefl.security.secagg.secure_sum import (
    InvalidShareError,
    RevealedShares,
    check_revealed,
    find_min_threshold,
    generate_keys,
    mask_vector,
    open_shares,
    reveal_shares,
    seal_shares,
    unmask_sum,
)
from edgefl.security.secagg.shamir import PRIME
from edgefl.security.secagg.vectors import decode_means, encode_deltas, measure_vector

CONTEXT = "kitchen round 3"


class Cohort:
    """Clients that went through the first two steps, each with words of its own."""

    def __init__(self, count, threshold=None, size=5):
        self.ids = [f"pi-{i}" for i in range(count)]
        self.threshold = threshold or find_min_threshold(count)
        drawn = {client_id: generate_keys() for client_id in self.ids}
        self.own = {client_id: own for client_id, (own, _) in drawn.items()}
        self.public = {client_id: public for client_id, (_, public) in drawn.items()}
        self.sealed = {i: seal_shares(self.own[i], i, self.public, self.threshold, CONTEXT) for i in self.ids}
        rng = np.random.default_rng(count)
        self.words = {i: rng.integers(0, 2**64, size, np.uint64, endpoint=False) for i in self.ids}

    def masked(self, client_id):
        return mask_vector(
            self.own[client_id], client_id, self.public, self.ids, self.words[client_id], CONTEXT
        )

    def inbox(self, client_id):
        return {other: messages[client_id] for other, messages in self.sealed.items()}

    def reveal(self, client_id, came):
        opened, failed = open_shares(
            self.own[client_id], client_id, self.public, self.inbox(client_id), CONTEXT
        )
        assert failed == ()
        return reveal_shares(client_id, opened, came, self.threshold)

    def total(self, ids):
        return np.add.reduce([self.masked(i) for i in ids])

    def unmask(self, came, answered):
        revealed = {i: self.reveal(i, came) for i in answered}
        return unmask_sum(self.total(came), self.public, self.ids, came, revealed, self.threshold, CONTEXT)

    def plain(self, ids):
        return np.add.reduce([self.words[i] for i in ids])


def test_masks_cancel_by_hand():
    """Two clients, one mask: (3 + m) + (2^64 - 1 - m) = 2 modulo 2^64."""
    seed = bytes(range(32))
    m = expand_mask(seed, 2)
    assert m.dtype == np.uint64
    assert (m != 0).all()
    first = np.array([3, 3], np.uint64)
    second = np.array([2**64 - 1] * 2, np.uint64)
    np.testing.assert_array_equal(add_masks(first, [seed], []) + add_masks(second, [], [seed]), [2, 2])


def test_the_sum_of_all_is_exact_and_no_message_shows_its_words():
    cohort = Cohort(4)
    np.testing.assert_array_equal(cohort.unmask(cohort.ids, cohort.ids), cohort.plain(cohort.ids))
    for client_id in cohort.ids:
        assert not (cohort.masked(client_id) == cohort.words[client_id]).any()
    # the pairwise masks are gone from the sum, each client's own is not: without the last step nothing is
    # known
    assert not (cohort.total(cohort.ids) == cohort.plain(cohort.ids)).any()


@given(st.integers(3, 7), st.data())
def test_the_sum_of_those_who_came_is_exact_whoever_drops_out_and_whoever_answers(count, data):
    cohort = Cohort(count, size=2)
    came = sorted(data.draw(st.sets(st.sampled_from(cohort.ids), min_size=cohort.threshold)))
    answered = sorted(data.draw(st.sets(st.sampled_from(came), min_size=cohort.threshold)))
    np.testing.assert_array_equal(cohort.unmask(came, answered), cohort.plain(came))


def test_too_few_answers_unmask_nothing():
    cohort = Cohort(5, threshold=4)
    came = cohort.ids[:4]
    with pytest.raises(RoundError, match="3 clients revealed their share of a secret, expected 4"):
        cohort.unmask(came, came[:3])
    with pytest.raises(RoundError, match="asked to unmask a sum of 3 clients, expected 4"):
        cohort.reveal("pi-0", cohort.ids[:3])
    with pytest.raises(RoundError, match="nothing is revealed"):
        cohort.reveal("pi-4", came)  # it did not come
    with pytest.raises(RoundError, match="nothing is revealed"):
        cohort.reveal("pi-0", [*came, "stranger"])


def test_a_client_reveals_of_each_other_one_of_the_two_secrets_never_both():
    cohort = Cohort(5)
    told = cohort.reveal("pi-1", ["pi-0", "pi-1", "pi-2"])
    assert set(told.seeds) == {"pi-0", "pi-1", "pi-2"}
    assert set(told.keys) == {"pi-3", "pi-4"}


def test_what_was_tampered_with_is_named():
    cohort = Cohort(4)
    inbox = cohort.inbox("pi-0")

    def failed(inbox, binding=CONTEXT):
        return open_shares(cohort.own["pi-0"], "pi-0", cohort.public, inbox, binding)[1]

    assert failed(inbox) == ()
    message = inbox["pi-1"]
    # The digest of either share, the nonce, the sealed bytes, the tag
    for place in (0, 40, 64, 76, len(message) - 1):
        assert failed(
            {**inbox, "pi-1": message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]}
        ) == ("pi-1",)
    assert failed({**inbox, "pi-1": inbox["pi-2"]}) == ("pi-1",)
    assert failed({**inbox, "pi-1": b"", "pi-3": message}) == ("pi-1", "pi-3")
    assert failed(inbox, "kitchen round 4") == tuple(cohort.ids)


def test_a_share_that_was_not_dealt_names_who_revealed_it():
    cohort = Cohort(4)
    came = cohort.ids[:3]
    told = cohort.reveal("pi-1", came)
    digests = {other: message[:64] for other, message in cohort.inbox("pi-1").items()}
    check_revealed("pi-1", told, digests, CONTEXT)
    # The same share modulo the prime
    for wrong, of in (
        (RevealedShares({**told.seeds, "pi-2": told.seeds["pi-2"] + 1}, told.keys), "pi-2"),
        (RevealedShares(told.seeds, {"pi-3": told.keys["pi-3"] - 1}), "pi-3"),
        (RevealedShares({**told.seeds, "pi-2": told.seeds["pi-0"]}, told.keys), "pi-2"),
        (
            RevealedShares({**told.seeds, "pi-2": told.seeds["pi-2"] + PRIME}, told.keys),
            "pi-2",
        ),
        (RevealedShares({**told.seeds, "pi-2": 2**528 - 1}, told.keys), "pi-2"),
    ):
        with pytest.raises(
            InvalidShareError, match=f"pi-1 revealed a share that differs from the share sent by {of}$"
        ) as raised:
            check_revealed("pi-1", wrong, digests, CONTEXT)
        assert raised.value.client_ids == ("pi-1",)


def test_shares_of_other_secrets_than_advertised_name_who_dealt_them():
    """pi-1 deals shares of another seed, pi-3, which does not come, of another mask key; all of them have the
    right digests.
    """
    cohort = Cohort(4)
    other, _ = generate_keys()
    for client_id, secrets in (
        ("pi-1", replace(cohort.own["pi-1"], self_seed=other.self_seed)),
        ("pi-3", replace(cohort.own["pi-3"], mask=other.mask)),
    ):
        cohort.sealed[client_id] = seal_shares(secrets, client_id, cohort.public, cohort.threshold, CONTEXT)
    came = cohort.ids[:3]
    with pytest.raises(InvalidShareError, match="the shares sent by pi-1, pi-3") as raised:
        cohort.unmask(came, came)
    assert raised.value.client_ids == ("pi-1", "pi-3")


def test_shares_on_no_polynomial_name_who_dealt_them():
    """What they give is larger than any seed, or is not the one whose digest was advertised."""
    cohort = Cohort(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            secure_sum,
            "split_secret",
            lambda secret, places, threshold: {place: 7**place * 2**300 for place in places},
        )
        cohort.sealed["pi-2"] = seal_shares(
            cohort.own["pi-2"], "pi-2", cohort.public, cohort.threshold, CONTEXT
        )
    with pytest.raises(InvalidShareError) as raised:
        cohort.unmask(cohort.ids, cohort.ids)
    assert raised.value.client_ids == ("pi-2",)


@pytest.mark.parametrize(("count", "threshold"), [(2, 2), (4, 2), (4, 5)])
def test_cohorts_and_thresholds_that_keep_nothing_secret(count, threshold):
    with pytest.raises(RoundError, match="expected 3 to 4096 clients"):
        Cohort(count, threshold)


def test_secrets_do_not_show_in_what_is_printed():
    own, _ = generate_keys()
    assert repr(own) == "Secrets(...)"


@given(
    st.lists(
        st.tuples(st.lists(st.floats(-64, 64, width=32), min_size=3, max_size=3), st.integers(0, 2**20)),
        min_size=1,
        max_size=5,
    )
)
def test_the_mean_is_the_weighted_mean_to_a_step_of_the_grid(clients):
    total = np.add.reduce([to_vector(np.array(values), samples) for values, samples in clients])
    count = sum(samples for _, samples in clients)
    mean = to_mean(total)
    if not count:
        assert mean is None
        return
    expected = sum(np.array(values) * samples for values, samples in clients) / count
    np.testing.assert_allclose(mean, expected, atol=2.0**-25 + 1e-12)


def test_as_many_and_as_large_as_allowed_do_not_overflow():
    for value in (64.0, -64.0):
        words = to_vector(np.array([value]), 2**20)
        np.testing.assert_array_equal(to_mean(np.add.reduce(np.stack([words] * (2**12 - 1)))), [value])


@pytest.mark.parametrize(
    ("value", "samples"), [(64.1, 1), (np.nan, 1), (np.inf, 1), (1.0, 2**20 + 1), (1.0, -1)]
)
def test_what_does_not_fit_is_refused(value, samples):
    with pytest.raises(DataError, match="for secure aggregation"):
        to_vector(np.array([value]), samples)


def test_a_vector_of_two_models_of_which_one_was_trained_by_hand():
    """Weights b (one value) and a (two), three samples: model x is 2^24 x 3 x (a, b), 3; model y, not
    trained, is all zero.
    """
    shapes = {"y": {"a": (1, 2), "b": (1,)}, "x": {"b": (1,), "a": (1, 2)}}
    delta = {"b": np.array([0.5], np.float32), "a": np.array([[1.0, -2.0]], np.float32)}
    words = encode_deltas({"x": delta}, 3, shapes)
    np.testing.assert_array_equal(words.view(np.int64), [3 * 2**24, -6 * 2**24, 3 * 2**23, 3, 0, 0, 0, 0])
    assert measure_vector(shapes) == 8
    means = decode_means(
        words + encode_deltas({"x": {name: -array for name, array in delta.items()}}, 1, shapes), shapes, 4
    )
    # In the order of the shapes, as an update's are
    assert (list(means), list(means["x"])) == (["x"], ["b", "a"])
    np.testing.assert_array_equal(means["x"]["a"], [[0.5, -1.0]])
    np.testing.assert_array_equal(means["x"]["b"], [0.25])


def test_a_sum_that_a_mask_is_left_on_is_no_mean():
    shapes = {"x": {"a": (2,)}}
    words = encode_deltas({"x": {"a": np.ones(2, np.float32)}}, 3, shapes)
    assert list(decode_means(words, shapes, 3)) == ["x"]
    for total, most in ((words, 2), (add_masks(words, [bytes(range(32))], []), 3)):
        with pytest.raises(WireError, match="mask was not removed"):
            decode_means(total, shapes, most)
