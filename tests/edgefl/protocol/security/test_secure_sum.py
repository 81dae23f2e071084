"""Masked sums: masks cancel, dropouts are removed exactly, and the aggregator learns only the sum."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import DataError, RoundError, WireError
from edgefl.protocol.security.secagg import secure_sum
from edgefl.protocol.security.secagg.masking import add_masks, expand_mask, to_mean, to_vector
from edgefl.protocol.security.secagg.secure_sum import (
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
from edgefl.protocol.security.secagg.shamir import PRIME
from edgefl.protocol.security.secagg.vectors import decode_means, encode_deltas, measure_vector

CONTEXT = "kitchen round 3"


class Cohort:
    """Clients that finished the first two steps, each with a random vector."""

    def __init__(self, count, threshold=None, size=5):
        self.ids = [f"pi-{i}" for i in range(count)]
        self.threshold = threshold or find_min_threshold(count)
        generated = {client_id: generate_keys() for client_id in self.ids}
        self.secrets = {client_id: secrets for client_id, (secrets, _) in generated.items()}
        self.public = {client_id: public for client_id, (_, public) in generated.items()}
        self.sealed = {
            i: seal_shares(self.secrets[i], i, self.public, self.threshold, CONTEXT) for i in self.ids
        }
        rng = np.random.default_rng(count)
        self.vectors = {i: rng.integers(0, 2**64, size, np.uint64, endpoint=False) for i in self.ids}

    def mask(self, client_id):
        return mask_vector(
            self.secrets[client_id], client_id, self.public, self.ids, self.vectors[client_id], CONTEXT
        )

    def collect_inbox(self, client_id):
        return {other: messages[client_id] for other, messages in self.sealed.items()}

    def reveal(self, client_id, survivors):
        opened, failed = open_shares(
            self.secrets[client_id], client_id, self.public, self.collect_inbox(client_id), CONTEXT
        )
        assert failed == ()
        return reveal_shares(client_id, opened, survivors, self.threshold)

    def sum_masked(self, ids):
        return np.add.reduce([self.mask(i) for i in ids])

    def unmask(self, survivors, responders):
        revealed = {i: self.reveal(i, survivors) for i in responders}
        return unmask_sum(
            self.sum_masked(survivors), self.public, self.ids, survivors, revealed, self.threshold, CONTEXT
        )

    def sum_plain(self, ids):
        return np.add.reduce([self.vectors[i] for i in ids])


def test_masks_cancel_in_the_sum():
    """Two clients, one mask: (3 + m) + (2^64 - 1 - m) = 2 modulo 2^64."""
    seed = bytes(range(32))
    m = expand_mask(seed, 2)
    assert m.dtype == np.uint64
    assert (m != 0).all()
    first = np.array([3, 3], np.uint64)
    second = np.array([2**64 - 1] * 2, np.uint64)
    np.testing.assert_array_equal(add_masks(first, [seed], []) + add_masks(second, [], [seed]), [2, 2])


def test_sum_is_exact_and_masked_vectors_hide_the_inputs():
    cohort = Cohort(4)
    np.testing.assert_array_equal(cohort.unmask(cohort.ids, cohort.ids), cohort.sum_plain(cohort.ids))
    for client_id in cohort.ids:
        assert not (cohort.mask(client_id) == cohort.vectors[client_id]).any()
    # Pairwise masks cancel in the sum, self masks do not: without the last step the aggregator learns nothing
    assert not (cohort.sum_masked(cohort.ids) == cohort.sum_plain(cohort.ids)).any()


@given(st.integers(3, 7), st.data())
def test_sum_of_survivors_is_exact_after_any_dropouts(count, data):
    cohort = Cohort(count, size=2)
    survivors = sorted(data.draw(st.sets(st.sampled_from(cohort.ids), min_size=cohort.threshold)))
    responders = sorted(data.draw(st.sets(st.sampled_from(survivors), min_size=cohort.threshold)))
    np.testing.assert_array_equal(cohort.unmask(survivors, responders), cohort.sum_plain(survivors))


def test_too_few_answers_reveal_nothing():
    cohort = Cohort(5, threshold=4)
    survivors = cohort.ids[:4]
    with pytest.raises(RoundError, match="3 clients revealed their share of a secret, expected 4"):
        cohort.unmask(survivors, survivors[:3])
    with pytest.raises(RoundError, match="asked to unmask a sum of 3 clients, expected 4"):
        cohort.reveal("pi-0", cohort.ids[:3])
    with pytest.raises(RoundError, match="nothing is revealed"):
        cohort.reveal("pi-4", survivors)  # it is not among the survivors
    with pytest.raises(RoundError, match="nothing is revealed"):
        cohort.reveal("pi-0", [*survivors, "stranger"])


def test_client_reveals_only_one_secret_of_each_client():
    cohort = Cohort(5)
    revealed_shares = cohort.reveal("pi-1", ["pi-0", "pi-1", "pi-2"])
    assert set(revealed_shares.seeds) == {"pi-0", "pi-1", "pi-2"}
    assert set(revealed_shares.keys) == {"pi-3", "pi-4"}


def test_senders_of_tampered_shares_are_named():
    cohort = Cohort(4)
    inbox = cohort.collect_inbox("pi-0")

    def list_failed(inbox, binding=CONTEXT):
        return open_shares(cohort.secrets["pi-0"], "pi-0", cohort.public, inbox, binding)[1]

    assert list_failed(inbox) == ()
    message = inbox["pi-1"]
    # The digests of both shares, the nonce, the sealed bytes, the tag
    for place in (0, 40, 64, 76, len(message) - 1):
        assert list_failed(
            {**inbox, "pi-1": message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]}
        ) == ("pi-1",)
    assert list_failed({**inbox, "pi-1": inbox["pi-2"]}) == ("pi-1",)
    assert list_failed({**inbox, "pi-1": b"", "pi-3": message}) == ("pi-1", "pi-3")
    assert list_failed(inbox, "kitchen round 4") == tuple(cohort.ids)


def test_wrong_revealed_share_names_the_revealing_client():
    cohort = Cohort(4)
    survivors = cohort.ids[:3]
    revealed_shares = cohort.reveal("pi-1", survivors)
    digests = {other: message[:64] for other, message in cohort.collect_inbox("pi-1").items()}
    check_revealed("pi-1", revealed_shares, digests, CONTEXT)
    # The same share modulo the prime
    for wrong, sender in (
        (
            RevealedShares(
                {**revealed_shares.seeds, "pi-2": revealed_shares.seeds["pi-2"] + 1}, revealed_shares.keys
            ),
            "pi-2",
        ),
        (RevealedShares(revealed_shares.seeds, {"pi-3": revealed_shares.keys["pi-3"] - 1}), "pi-3"),
        (
            RevealedShares(
                {**revealed_shares.seeds, "pi-2": revealed_shares.seeds["pi-0"]}, revealed_shares.keys
            ),
            "pi-2",
        ),
        (
            RevealedShares(
                {**revealed_shares.seeds, "pi-2": revealed_shares.seeds["pi-2"] + PRIME}, revealed_shares.keys
            ),
            "pi-2",
        ),
        (RevealedShares({**revealed_shares.seeds, "pi-2": 2**528 - 1}, revealed_shares.keys), "pi-2"),
    ):
        with pytest.raises(
            InvalidShareError, match=f"pi-1 revealed a share that differs from the share sent by {sender}$"
        ) as raised:
            check_revealed("pi-1", wrong, digests, CONTEXT)
        assert raised.value.client_ids == ("pi-1",)


def test_shares_of_unadvertised_secrets_name_their_sender():
    """pi-1 sends shares of another seed, and the dropout pi-3 of another mask key. All digests are right."""
    cohort = Cohort(4)
    other, _ = generate_keys()
    for client_id, secrets in (
        ("pi-1", replace(cohort.secrets["pi-1"], self_seed=other.self_seed)),
        ("pi-3", replace(cohort.secrets["pi-3"], mask=other.mask)),
    ):
        cohort.sealed[client_id] = seal_shares(secrets, client_id, cohort.public, cohort.threshold, CONTEXT)
    survivors = cohort.ids[:3]
    with pytest.raises(InvalidShareError, match="the shares sent by pi-1, pi-3") as raised:
        cohort.unmask(survivors, survivors)
    assert raised.value.client_ids == ("pi-1", "pi-3")


def test_inconsistent_shares_name_their_sender():
    """The combined secret is larger than any seed, or does not match the advertised digest."""
    cohort = Cohort(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            secure_sum,
            "split_secret",
            lambda secret, places, threshold: {place: 7**place * 2**300 for place in places},
        )
        cohort.sealed["pi-2"] = seal_shares(
            cohort.secrets["pi-2"], "pi-2", cohort.public, cohort.threshold, CONTEXT
        )
    with pytest.raises(InvalidShareError) as raised:
        cohort.unmask(cohort.ids, cohort.ids)
    assert raised.value.client_ids == ("pi-2",)


@pytest.mark.parametrize(("count", "threshold"), [(2, 2), (4, 2), (4, 5)])
def test_insecure_cohort_size_or_threshold_is_refused(count, threshold):
    with pytest.raises(RoundError, match="expected 3 to 4096 clients"):
        Cohort(count, threshold)


def test_repr_of_secrets_hides_them():
    secrets, _ = generate_keys()
    assert repr(secrets) == "Secrets(...)"


@given(
    st.lists(
        st.tuples(st.lists(st.floats(-64, 64, width=32), min_size=3, max_size=3), st.integers(0, 2**20)),
        min_size=1,
        max_size=5,
    )
)
def test_fixed_point_mean_matches_weighted_mean_within_rounding(clients):
    total = np.add.reduce([to_vector(np.array(values), samples) for values, samples in clients])
    count = sum(samples for _, samples in clients)
    mean = to_mean(total)
    if not count:
        assert mean is None
        return
    expected = sum(np.array(values) * samples for values, samples in clients) / count
    np.testing.assert_allclose(mean, expected, atol=2.0**-25 + 1e-12)


def test_largest_allowed_sums_do_not_overflow():
    for value in (64.0, -64.0):
        vector = to_vector(np.array([value]), 2**20)
        np.testing.assert_array_equal(to_mean(np.add.reduce(np.stack([vector] * (2**12 - 1)))), [value])


@pytest.mark.parametrize(
    ("value", "samples"), [(64.1, 1), (np.nan, 1), (np.inf, 1), (1.0, 2**20 + 1), (1.0, -1)]
)
def test_values_outside_the_allowed_range_are_refused(value, samples):
    with pytest.raises(DataError, match="for secure aggregation"):
        to_vector(np.array([value]), samples)


def test_vector_of_trained_and_untrained_model_matches_hand_calculation():
    """With three samples, model x is 2^24 x 3 x (a, b) and 3. The untrained model y is all zero."""
    shapes = {"y": {"a": (1, 2), "b": (1,)}, "x": {"b": (1,), "a": (1, 2)}}
    delta = {"b": np.array([0.5], np.float32), "a": np.array([[1.0, -2.0]], np.float32)}
    vector = encode_deltas({"x": delta}, 3, shapes)
    np.testing.assert_array_equal(vector.view(np.int64), [3 * 2**24, -6 * 2**24, 3 * 2**23, 3, 0, 0, 0, 0])
    assert measure_vector(shapes) == 8
    means = decode_means(
        vector + encode_deltas({"x": {name: -array for name, array in delta.items()}}, 1, shapes), shapes, 4
    )
    # In the order of the shapes, like an update
    assert (list(means), list(means["x"])) == (["x"], ["b", "a"])
    np.testing.assert_array_equal(means["x"]["a"], [[0.5, -1.0]])
    np.testing.assert_array_equal(means["x"]["b"], [0.25])


def test_sum_with_a_remaining_mask_is_refused():
    shapes = {"x": {"a": (2,)}}
    vector = encode_deltas({"x": {"a": np.ones(2, np.float32)}}, 3, shapes)
    assert list(decode_means(vector, shapes, 3)) == ["x"]
    for total, max_samples in ((vector, 2), (add_masks(vector, [bytes(range(32))], []), 3)):
        with pytest.raises(WireError, match="mask was not removed"):
            decode_means(total, shapes, max_samples)
