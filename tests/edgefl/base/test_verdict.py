"""The verdict on a federation: McNemar's test by hand, a federation by hand, and properties of both."""

import json
import math
import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.verdict import (
    DEVICE_FIGURES,
    MODEL_KINDS,
    as_dict,
    compare_typical_device,
    compare_with_local,
    describe_device_verdict,
    find_rise,
    find_significance_level,
    from_dict,
    judge_federation,
    make_table_rows,
    render_device_lines,
    render_verdict_table,
    select_least_gained,
    sign_test,
)
from edgefl.learning.algorithms import REGISTRY


def make_row(
    client_id, local=None, federated=None, shipped=None, int8=None, kind=None, gained=None, lost=None
):
    names = ("accuracy_local", "accuracy_federated", "accuracy_shipped", "accuracy_shipped_int8", "shipped")
    device = dict(zip(names, (local, federated, shipped, int8, kind), strict=True))
    device |= {"test_gained": gained, "test_lost": lost, "n_test": 40.0}
    return {"id": client_id, **{key: value for key, value in device.items() if value is not None}}


FOUR_ROWS = [
    make_row("pi-2", 0.80, 0.70, 0.925, 0.90, 3.0, 6.0, 1.0),
    make_row("pi-1", 0.75, 0.60, 0.925, 0.875, 2.0, 7.0, 0.0),
    make_row("pi-3", 0.90, 0.50, 0.90, 0.85, 0.0, 0.0, 0.0),
    make_row("pi-4", 0.95, 0.80, 0.75, 0.80, 1.0, 1.0, 9.0),
]


@pytest.mark.parametrize(
    ("gained", "lost", "numerator", "samples"),
    [
        (0, 0, 1, 0),
        (1, 0, 1, 1),
        (0, 1, 2, 1),
        (4, 0, 1, 4),
        (5, 0, 1, 5),
        (6, 1, 1 + 7, 7),
        (7, 1, 1 + 8, 8),
        (8, 2, 1 + 10 + 45, 10),
        (9, 2, 1 + 11 + 55, 11),
        (3, 3, 1 + 6 + 15 + 20, 6),
        (2, 9, 2**11 - 1 - 11, 11),
    ],
)
def test_exact_sign_test_by_hand(gained, lost, numerator, samples):
    """P(X >= gained) is a sum of binomial coefficients over 2^n."""
    assert sign_test(gained, lost) == numerator / 2**samples


@pytest.mark.parametrize(
    ("gained", "lost", "comparison"),
    [
        (0, 0, "as good"),
        (4, 0, "as good"),  # 1/16
        (5, 0, "better"),  # 1/32
        (0, 5, "worse"),
        (6, 1, "as good"),  # 8/128
        (7, 1, "better"),  # 9/256
        (1, 7, "worse"),
        (8, 2, "as good"),  # 56/1024
        (9, 2, "better"),  # 67/2048
        (50, 50, "as good"),
    ],
)
def test_comparisons_by_hand(gained, lost, comparison):
    assert compare_with_local(gained, lost) == comparison


@pytest.mark.parametrize("lost", [400, 450, 470, 480, 500, 520, 600])
def test_approximation_is_close_to_exact_values(lost):
    """1,000 discordant samples use the exact value, 1,001 the approximation. Both values are close."""
    exact = sum(math.comb(1001, k) for k in range(1001 - lost, 1002)) / 2**1001
    assert sign_test(1001 - lost, lost) == pytest.approx(exact, rel=0.02, abs=1e-6)


def test_huge_counts_are_judged_without_delay():
    (device,) = judge_federation([make_row("a", 0.5, 0.5, 0.6, 0.6, 3.0, 2.0**52, 0.0)]).rows
    assert device.comparison == "better"
    assert judge_federation([make_row("a", 0.5, 0.5, 0.6, 0.6, 3.0, 1e300, 0.0)]).rows[0].comparison == ""


def test_level_of_many_tests_by_hand():
    """The k-th smallest of m p-values is compared with .05 k / m. The last one that passes sets the level."""
    assert find_significance_level([]) == 0
    assert find_significance_level([0.05]) == 0.05
    assert find_significance_level([0.03, 0.9]) == 0  # .03 is above .025
    assert find_significance_level([0.9, 0.035, 0.03, 0.02]) == pytest.approx(0.0375)


@pytest.mark.parametrize(
    ("shipped", "gained", "lost", "comparison"),
    [(0.925, 5.0, 0.0, "better"), (0.675, 0.0, 5.0, "worse")],
)
def test_one_device_of_many_does_not_differ_by_chance(shipped, gained, lost, comparison):
    """5 samples against none have p = 1/32, which is too much for one device of 50."""
    equal = [make_row(f"d-{i}", 0.8, 0.8, 0.8, 0.8, 3.0, 2.0, 2.0) for i in range(49)]
    other = make_row("other", 0.8, 0.8, shipped, 0.8, 3.0, gained, lost)
    assert getattr(judge_federation([other]), comparison) == 1
    verdict = judge_federation([*equal, other])
    assert (verdict.better, verdict.as_good, verdict.worse) == (0, 50, 0)
    assert getattr(judge_federation({**other, "id": str(i)} for i in range(50)), comparison) == 50


def test_devices_that_ship_their_local_model_do_not_change_the_level():
    equal = [make_row(f"d-{i}", 0.8, 0.8, 0.8, 0.8, 0.0, 0.0, 0.0) for i in range(49)]
    better = make_row("better", 0.8, 0.8, 0.925, 0.9, 3.0, 5.0, 0.0)
    verdict = judge_federation([*equal, better])
    assert (verdict.better, verdict.as_good, verdict.worse) == (1, 49, 0)


def test_sentence_names_the_mean_shares_of_the_blends():
    """The third device ships its local model, so it has no shares."""
    blends = [
        {"id": "pi-1", "shipped": 4.0, "share_local": 0.25, "share_fine_tuned": 0.25, "share_federated": 0.5},
        {"id": "pi-2", "shipped": 4.0, "share_local": 0.35, "share_federated": 0.65},
        {"id": "pi-3", "shipped": 0.0, "share_local": 1.0},
    ]
    rows = [{**row, "accuracy_local": 0.5, "accuracy_shipped": 0.75} for row in blends]
    sentence = judge_federation(rows).sentence
    assert (
        "the shipped blends consist of 57.5% federated, 30.0% local and 12.5% fine-tuned model." in sentence
    )
    assert "blends" not in judge_federation(rows[2:]).sentence


def test_verdict_on_a_federation_by_hand():
    verdict = judge_federation(FOUR_ROWS)
    assert [item.id for item in verdict.rows] == ["pi-1", "pi-2", "pi-3", "pi-4"]
    assert [item.comparison for item in verdict.rows] == ["better", "as good", "as good", "worse"]
    assert (verdict.devices, verdict.better, verdict.as_good, verdict.worse) == (4, 1, 2, 1)
    assert verdict.means == pytest.approx(
        {"local": 0.85, "federated": 0.65, "shipped": 0.875, "int8": 0.85625}
    )
    assert verdict.worst == {"local": 0.75, "federated": 0.5, "shipped": 0.75, "int8": 0.8}
    assert verdict.gain_points == pytest.approx(2.5)
    assert verdict.kinds == {"local": 1, "federated": 1, "fine-tuned": 1, "mixture": 1, "blend": 0}
    assert verdict.overall == "as good"  # gains of 5, 7, 0 and -8
    assert verdict.sentence == (
        "The federation was worth it for 1 of 4 devices: its model is better than training alone (as good "
        "for 2, worse for 1). On average accuracy rises by 2.5 points. The federated model is 20.0 points "
        'below training alone: try the algorithm "clustered" or "pfl-mfe", or more rounds.'
    )
    assert render_verdict_table(verdict).splitlines() == [
        "device  local  federated  shipped   int8  model       against local",
        "pi-1    75.0%      60.0%    92.5%  87.5%  fine-tuned  better",
        "pi-2    80.0%      70.0%    92.5%  90.0%  mixture     as good",
        "pi-3    90.0%      50.0%    90.0%  85.0%  local       as good",
        "pi-4    95.0%      80.0%    75.0%  80.0%  federated   worse",
        "mean    85.0%      65.0%    87.5%  85.6%",
        "worst   75.0%      50.0%    75.0%  80.0%",
    ]


def test_rows_without_a_selection_show_the_mixture_as_the_shipped_model():
    rows = [
        {"id": "a", "accuracy_local": 0.5, "accuracy_mixture": 0.75, "accuracy_mixture_int8": 0.7},
        {"id": "b", "accuracy_local": None, "accuracy_mixture": math.nan, "accuracy_federated": 0.25},
    ]
    verdict = judge_federation(rows)
    a, b = verdict.rows
    assert (a.local, a.federated, a.shipped, a.int8, a.kind, a.comparison) == (
        0.5,
        None,
        0.75,
        0.7,
        "mixture",
        "",
    )
    assert (b.local, b.federated, b.shipped, b.int8, b.kind) == (None, 0.25, None, None, "")
    assert verdict.gain_points == 25
    assert (verdict.better, verdict.as_good, verdict.worse, verdict.overall) == (0, 0, 0, "")
    assert verdict.sentence == (
        "On average accuracy rises by 25.0 points. The devices did not report for how many of them that is "
        "more than chance."
    )


def test_int8_accuracy_of_mixture_is_not_used_for_another_model():
    verdict = judge_federation(
        [{"id": "a", "accuracy_shipped": 0.9, "accuracy_mixture": 0.5, "accuracy_mixture_int8": 0.4}]
    )
    assert (verdict.rows[0].shipped, verdict.rows[0].int8) == (0.9, None)


def test_verdict_uses_the_chosen_measure():
    (device,) = judge_federation(
        [{"id": "a", "auc_shipped": 0.9, "accuracy_shipped": 0.1}], measure="auc"
    ).rows
    assert device.shipped == 0.9


FLAT = [0.9, 0.91] * 10
RISING = [0.5 + 0.01 * number for number in range(20)]
BELOW_ROWS = [make_row(f"d-{i}", 0.9, 0.6, 0.9, 0.9, 0.0, 0.0, 0.0) for i in range(10)]
EQUAL_ROWS = [make_row(f"d-{i}", 0.9, 0.6, 0.9, 0.9, 0.0, 0.0, 0.0) for i in range(3)]
CLOSE_ROWS = [make_row(f"d-{i}", 0.8, 0.79, 0.8, 0.8, 0.0, 2.0, 1.0) for i in range(10)]


@pytest.mark.parametrize(
    ("accuracies", "rise"),
    [
        ((), None),
        (RISING[:9], None),  # nine rounds are too few
        (RISING[:10], 5.0),  # .07 - .02 above .5, on a straight line
        (RISING, 5.0),
        ([*RISING[:9], None], None),
        ([*RISING[:9], math.nan], None),
        (FLAT, None),
        (RISING[::-1], None),
        ([0.5] * 5 + [0.509] * 5, None),  # below a point
        ([0.5] * 5 + [0.51] * 5, 1.0),
        # A line of slope 6 / 11 leaves a sum of squares of 90 - 82.5 (6 / 11)^2 = 65.5, so the error is
        # sqrt(2 / 5 x 65.5 / 8) = 1.81, and a rise of 2 points is less than twice this
        ([0.5] * 9 + [0.6], None),
        # A slope of 20 / 33 leaves 49.6 - 82.5 (20 / 33)^2 = 19.3, so the error is .98
        ([0.5, 0.52, 0.5, 0.52, 0.5, 0.54, 0.56, 0.54, 0.56, 0.54], 4.0),
    ],
)
def test_rise_of_the_last_rounds_by_hand(accuracies, rise):
    found = find_rise(accuracies)
    assert found == (None if rise is None else pytest.approx(rise))


@pytest.mark.parametrize(
    ("rows", "options", "ends"),
    [
        (BELOW_ROWS, {"accuracies": RISING, "rounds": 20}, "last five: set rounds = 40 in [federation]."),
        (BELOW_ROWS, {"accuracies": RISING}, "to the last five: train for more rounds."),
        (BELOW_ROWS, {"accuracies": FLAT}, 'enough. Try the algorithm "clustered" or "pfl-mfe".'),
        (BELOW_ROWS, {"accuracies": FLAT, "algorithm": "clustered"}, 'enough. Try the algorithm "pfl-mfe".'),
        (BELOW_ROWS, {"accuracies": FLAT, "algorithm": "pfl-mfe"}, "to show a difference."),
        # 1 point is less than two standard errors of 4.5 points. All devices together gained 8 and lost 4 of
        # 160 samples: 160 x pi / 2 x 1.6449^2 x 12 / 4^2 = 510.0, and 80 x 1.6449^2 x 6 / 2^2 = 324.7
        (CLOSE_ROWS[:4], {"accuracies": FLAT}, "show with about 510 test samples, here are 160."),
        (CLOSE_ROWS[:2], {"accuracies": FLAT}, "show with about 325 test samples, here are 80."),
    ],
)
def test_advice_depends_on_the_last_rounds(rows, options, ends):
    assert judge_federation(rows, **options).sentence.endswith(ends)


@pytest.mark.parametrize("rows", [BELOW_ROWS, CLOSE_ROWS, FOUR_ROWS, EQUAL_ROWS])
@pytest.mark.parametrize("algorithm", sorted(REGISTRY))
def test_following_the_advice_ends(rows, algorithm):
    """The accuracy rises until there are 80 rounds, and the devices' figures stay the same."""
    tried = []
    rounds = 20
    while True:
        accuracies = RISING if rounds < 80 else FLAT
        sentence = judge_federation(
            rows, algorithm=algorithm, rounds=rounds, accuracies=accuracies, num_classes=10
        ).sentence
        if match := re.search(r"set rounds = (\d+)", sentence):
            rounds = int(match[1])
        elif match := re.search(r'the algorithm "([\w-]+)"', sentence):
            algorithm = match[1]
        else:
            break
        assert (algorithm, rounds) not in tried
        tried.append((algorithm, rounds))
    assert rounds == (20 if algorithm == "local" else 80)


@pytest.mark.parametrize(
    ("rows", "options", "begins", "ends"),
    [
        ([], {}, "No device reported figures", "was worth it."),
        ([{"id": "a", "accuracy_local": 0.5}], {}, "No device reported its accuracy both", "was worth it."),
        (
            EQUAL_ROWS,
            {"algorithm": "pfl-mfe"},
            "The federation was worth it for none of 3 devices: no model is better than training alone "
            "beyond chance (as good for 3, worse for none). On average accuracy stays the same. ",
            "Most devices ship their local model: their data differ a lot, or each device has enough. Try "
            "more rounds.",
        ),
        (
            [make_row("a", 0.6, 0.12, 0.6, 0.6, 0.0, 0.0, 0.0)],
            {"num_classes": 10},
            "The federation was worth it for none of 1 device: no model is better than",
            "The federated model is at chance (12.0% with 10 classes): try a smaller learning_rate, or more "
            "rounds.",
        ),
        (
            [
                make_row(f"d-{i}", 0.9, 0.6, 0.9, 0.9, 4.0, 0.0, 0.0)
                | {"share_local": 0.8, "share_federated": 0.2}
                for i in range(2)
            ],
            {"algorithm": "clustered"},
            "The federation was worth it for none of 2 devices: no model is better than training alone "
            "beyond chance (as good for 2, worse for none). On average accuracy stays the same. On average "
            "the shipped blends consist of 80.0% local and 20.0% federated model. ",
            "The blends are mostly the local models: the data of the devices differ a lot, or each device "
            'has enough. Try the algorithm "pfl-mfe", or more rounds.',
        ),
        (
            # Its federated model ends in layers that no device has trained.
            [make_row("a", 0.6, 0.12, 0.6, 0.6, 0.0, 0.0, 0.0)],
            {"num_classes": 10, "algorithm": "fedrep"},
            "The federation was worth it for none of 1 device: no model is better than",
            "Most devices ship their local model: their data differ a lot, or each device has enough. Try "
            'the algorithm "clustered" or "pfl-mfe", or more rounds.',
        ),
        (
            [make_row("a", 0.9, 0.7, 0.6, 0.6, 3.0, 0.0, 12.0)],
            {"select": False},
            "The federation was worth it for none of 1 device: no model is better than training alone beyond "
            "chance (as good for none, worse for 1). On average accuracy falls by 30.0 points. ",
            "Set select = true in [personalization], so that a device compares its models.",
        ),
        (
            # The devices choose a model, and all of them chose the mixture.
            [
                make_row("a", 0.9, 0.7, 0.6, 0.6, 3.0, 0.0, 12.0),
                make_row("b", 0.9, 0.7, 0.9, 0.9, 3.0, 0.0, 0.0),
            ],
            {},
            "The federation was worth it for none of 2 devices: ",
            'The federated model is 20.0 points below training alone: try the algorithm "clustered" or '
            '"pfl-mfe", or more rounds.',
        ),
        (
            [make_row("a", 0.5, 0.7, 0.75, 0.7, 3.0, 10.0, 0.0)],
            {"num_classes": 10},
            "The federation was worth it for 1 of 1 device: its model is better than training alone (as ",
            "good for none, worse for none). On average accuracy rises by 25.0 points.",
        ),
        (
            # Each of two devices gains 10 points, and the third loses 50.
            [
                *(make_row(name, 0.5, 0.4, 0.6, 0.6, 3.0, 8.0, 0.0) for name in "ab"),
                make_row("c", 0.9, 0.4, 0.4, 0.4, 3.0, 0.0, 8.0),
            ],
            {"select": False},
            "The federation was worth it for 2 of 3 devices: their models are better than training alone (as "
            "good for none, worse for 1). But on average ",
            "accuracy falls by 10.0 points.",
        ),
        (
            [make_row(f"d-{i}", 0.8, 0.9, 0.9, 0.9, 1.0, 4.0, 0.0) for i in range(4)],
            {},
            "The federation was worth it for the 4 devices together: the median gain over training alone is "
            "more than chance (as good for 4, worse for none by their own). ",
            "On average accuracy rises by 10.0 points.",
        ),
        (
            [make_row("a", 0.1, 0.1, 0.15, 0.1, 3.0, 6.0, 0.0)],
            {"num_classes": 10},
            "The federation was worth it for 1 of 1 device: ",
            "The models are at chance (15.0% with 10 classes): look at the labels, then try a smaller "
            "learning_rate, or more rounds.",
        ),
        (
            [make_row("a", 0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0)],
            {"algorithm": "local", "num_classes": 10},
            "The federation was worth it for none of 1 device: ",
            "The models are at chance (10.0% with 10 classes): look at the labels, then try a smaller "
            "learning_rate, or more rounds.",
        ),
        (
            [make_row(f"d-{i}", 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0) for i in range(4)],
            {"num_classes": 10},
            "The federation was worth it for none of 4 devices: ",
            "Training alone makes no error on the test samples, so nothing can be better: check that the "
            "labels have several classes, or test on more samples.",
        ),
        (
            [make_row(f"d-{i}", 0.8, 0.8, 0.8, 0.8, 0.0, 0.0, 0.0) for i in range(4)],
            {"algorithm": "local"},  # without a federation, another algorithm is no advice
            "The federation was worth it for none of 4 devices: ",
            "On average accuracy stays the same.",
        ),
    ],
)
def test_sentence_describes_the_verdict(rows, options, begins, ends):
    sentence = judge_federation(rows, **options).sentence
    assert sentence.startswith(begins)
    assert sentence.endswith(ends)


def test_the_sentence_counts_devices_that_could_be_compared():
    sentence = judge_federation([FOUR_ROWS[1], {**FOUR_ROWS[0], "test_lost": None}]).sentence
    assert sentence.startswith(
        "The federation was worth it for 1 of the 1 device that could be compared: its"
    )


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({}, "pi-1 ships its mixture model with 92.5% accuracy: as good, within chance, as 80.0% if it had"),
        ({"test_gained": 8.0}, "92.5% accuracy: better than 80.0% if it had trained alone."),
        ({"test_gained": 0.0, "test_lost": 5.0}, "92.5% accuracy: worse than 80.0% if it had trained alone."),
        ({"test_gained": None}, "92.5% accuracy, against 80.0% if it had trained alone."),
        ({"accuracy_local": None}, "pi-1 ships its mixture model with 92.5% accuracy."),
        ({"accuracy_shipped": None, "shipped": None}, "pi-1 ships its model; its accuracy was not measured."),
    ],
)
def test_sentence_about_a_device_has_accuracy_and_comparison(change, phrase):
    (device,) = judge_federation([{**FOUR_ROWS[0], "id": "pi-1", **change}]).rows
    assert phrase in describe_device_verdict(device)


def test_lines_of_a_device_are_table_and_sentence():
    (device,) = judge_federation([FOUR_ROWS[0]]).rows
    assert render_device_lines(device) == [
        "device  local  federated  shipped   int8  model    against local",
        "pi-2    80.0%      70.0%    92.5%  90.0%  mixture  as good",
        "pi-2 ships its mixture model with 92.5% accuracy: as good, within chance, as 80.0% if it had "
        "trained alone.",
    ]


def test_verdict_survives_a_round_trip_through_json():
    verdict = judge_federation(FOUR_ROWS)
    assert from_dict(json.loads(json.dumps(as_dict(verdict)))) == verdict


def test_a_long_table_shows_the_devices_that_gained_least():
    rows = [make_row(f"d-{i:02}", 0.5, 0.5, 0.5 + i / 100, 0.5) for i in range(10)]
    verdict = judge_federation([*rows, make_row("lost")])
    assert [item.id for item in select_least_gained(verdict.rows, 3)] == ["d-00", "d-01", "d-02"]
    cells = [item[0] for item in make_table_rows(verdict, 3)]
    assert cells == ["device", "d-00", "d-01", "d-02", "(8 more)", "mean", "worst"]


shares = st.one_of(
    st.none(), st.just(math.nan), st.floats(0, 1), st.floats(), st.just("0.5"), st.just(10**400)
)
counts = st.one_of(st.none(), st.floats(), st.integers(0, 400).map(float))
clients = st.lists(
    st.fixed_dictionaries(
        {"id": st.text(min_size=1, max_size=8)},
        optional={
            **{
                f"accuracy_{name}": shares
                for name in ("local", "federated", "mixture", "shipped", "shipped_int8", "mixture_int8")
            },
            "shipped": st.one_of(shares, st.integers(-1, 5).map(float)),
            "test_gained": counts,
            "test_lost": counts,
            "n_test": counts,
        },
    ),
    max_size=8,
    unique_by=lambda item: item["id"],
)


@settings(deadline=None)
@given(clients, st.integers(0, 20))
def test_any_rows_give_a_consistent_verdict(rows, num_classes):
    verdict = judge_federation(rows, num_classes=num_classes)
    assert verdict.devices == len(verdict.rows) == len(rows)
    assert verdict.better + verdict.as_good + verdict.worse == sum(
        bool(item.comparison) for item in verdict.rows
    )
    assert sum(verdict.kinds.values()) == sum(bool(item.kind) for item in verdict.rows)
    for name in DEVICE_FIGURES:
        values = [value for item in verdict.rows if (value := getattr(item, name)) is not None]
        assert all(0 <= value <= 1 for value in values)
        mean, worst = verdict.means[name], verdict.worst[name]
        assert (mean is None) == (worst is None) == (not values)
        if mean is not None and worst is not None:
            assert worst - 1e-9 <= mean <= max(values) + 1e-9
    assert verdict.sentence.endswith(".")
    assert json.loads(json.dumps(as_dict(verdict), allow_nan=False))["kinds"].keys() == set(MODEL_KINDS)
    assert len({len(cells) for cells in make_table_rows(verdict)}) == 1
    assert judge_federation(reversed(rows), num_classes=num_classes) == verdict


@settings(deadline=None)
@given(st.integers(0, 700), st.integers(0, 700))
def test_sign_test_is_symmetric_and_monotone(gained, lost):
    exchanged: dict[str, str] = {"better": "worse", "worse": "better", "as good": "as good"}
    assert compare_with_local(lost, gained) == exchanged[compare_with_local(gained, lost)]
    assert sign_test(gained + 1, lost) <= sign_test(gained, lost)
    if gained + lost < 1000:
        # Both tails include the middle, P(X = gained).
        both = sign_test(gained, lost) + sign_test(lost, gained)
        assert both == pytest.approx(1 + math.comb(gained + lost, gained) / 2 ** (gained + lost))


def test_at_most_five_of_a_hundred_equal_models_are_called_better():
    """Over all outcomes of 12 discordant samples, which are equally likely under the null hypothesis."""
    better_count = sum(
        compare_with_local(sum(ways), 12 - sum(ways)) == "better" for ways in product((0, 1), repeat=12)
    )
    assert 0 < better_count / 2**12 <= 0.05


@pytest.mark.parametrize(
    ("counts", "comparison"),
    [
        ([], ""),
        ([(0, 0)], "as good"),
        ([(4, 0)], "as good"),  # P(X >= 4) = .0625 of Binomial(4, 1/2)
        ([(5, 0)], "better"),  # P(X >= 5) = .0313
        ([(0, 5)], "worse"),
        ([(20, 9)], "better"),  # P(X >= 20) = .0307 of Binomial(29, 1/2)
        ([(19, 10)], "as good"),  # P(X >= 19) = .0680
        ([(12, 4), (8, 5)], "better"),  # both together have 20 and 9
        ([(2, 0)] * 2, "as good"),  # P(X >= 4) = .0625 of Binomial(4, 1/2)
        ([(2, 0)] * 3, "better"),  # 2 / (.7236 x 1.4142) = 1.95
        ([(9, 0), (0, 0), (0, 0)], "as good"),  # most devices gain nothing
        ([(9, 0), (5, 0), (4, 0), (0, 9)], "better"),  # 4.5 / (.6267 x 2.5 x 1.4826) = 1.94
        ([(9, 0), (5, 0), (0, 1), (0, 9)], "as good"),  # 2 / (.6267 x 5 x 1.4826) = .43
    ],
)
def test_median_gain_by_hand(counts, comparison):
    assert compare_typical_device(counts) == comparison


@given(
    st.sampled_from([(4, 0), (1, 6), (3, 3), (0, 0)]),
    st.integers(2, 9),
    st.lists(st.tuples(st.integers(0, 2**53), st.integers(0, 2**53)), max_size=8),
)
def test_fewer_than_half_of_the_devices_do_not_decide_for_all(own, honest, others):
    """All honest devices have the same counts, so any others leave the median and the spread as they are."""
    others = others[: honest - 1]
    expected = compare_typical_device([own] * (honest + len(others)))
    assert compare_typical_device([own] * honest + others) == expected


def test_device_that_reports_absurd_counts_and_another_measure_decides_nothing():
    """Nine devices gain 5 samples each. A tenth reports 2^53 lost samples and an accuracy."""
    honest = [
        {"id": f"d-{i}", "r2_local": 0.5, "r2_shipped": 0.6, "test_gained": 5.0, "test_lost": 0.0}
        for i in range(9)
    ]
    liar = {"id": "liar", "accuracy_shipped": 1.0, "test_gained": 0.0, "test_lost": 2.0**53 - 1}
    verdict = judge_federation([*honest, liar])
    assert (verdict.overall, verdict.measure, verdict.devices) == ("better", "R2", 10)


@pytest.mark.parametrize(
    ("shipped", "gained", "lost", "comparison"),
    [
        (0.84, 440, 360, "better"),
        (0.82, 440, 360, "as good"),
        (0.82, 360, 440, "worse"),
        (0.84, 360, 440, "as good"),
        (0.83, 360, 440, "worse"),
    ],
)
def test_errors_of_most_samples_and_the_whole_must_agree_in_a_regression(shipped, gained, lost, comparison):
    """A local model with an R2 of .83 and smaller errors in most samples is no better if its R2 is lower."""
    row = {"id": "pi-1", "r2_local": 0.83, "r2_shipped": shipped, "test_gained": gained, "test_lost": lost}
    verdict = judge_federation([row], measure="r2")
    assert verdict.rows[0].comparison == comparison
    assert verdict.overall == comparison
