"""The message of a verdict: what goes in comes out, in five digits, and it stays small."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.system.format import format_percent
from edgefl.verdict import DeviceFigures, judge_federation, render_verdict_lines
from edgefl.wire import messages
from edgefl.wire.strict_json import decode_json, encode_json, find_max_bytes
from edgefl.wire.verdict_message import make_verdict_message, read_verdict

ROWS = [
    {"id": "pi-1", "accuracy_local": 0.5, "accuracy_shipped": 0.75, "shipped": 3.0, "test_gained": 9.0},
    {"id": "pi-2", "accuracy_local": 1 / 3, "accuracy_shipped": 1.0, "test_gained": 9.0, "test_lost": 0.0},
]


def travelled(verdict, **options):
    sent = encode_json(make_verdict_message(verdict, "s", 1.0, **{"with_rows": True, **options}))
    return read_verdict(decode_json(messages.Verdict, sent))


def test_a_message_by_hand():
    verdict = judge_federation(ROWS)
    message = make_verdict_message(verdict, "s", 2.5, with_rows=True)
    assert (message.session, message.ts, message.devices, message.better) == ("s", 2.5, 2, 1)
    assert message.means["shipped"] == 0.875
    assert math.isnan(message.means["int8"])
    assert [row[:2] for row in message.rows] == [("pi-1", 0.5), ("pi-2", 0.33333)]
    assert message.rows[1][3:] == (1.0, message.rows[1][4], "", "better")
    found = travelled(verdict)
    assert found.rows[1].local == 0.33333
    assert found.rows[1].int8 is None
    assert found.sentence == verdict.sentence


def test_a_reader_rounds_to_the_per_cent_that_the_aggregator_prints():
    share = 293 / 325  # 90.154%; four digits would give 90.15%, which is 90.1% on a page
    found = travelled(judge_federation([{"id": "pi-1", "accuracy_local": 0.5, "accuracy_shipped": share}]))
    assert format_percent(found.rows[0].shipped) == format_percent(share) == "90.2%"


def test_figures_of_single_devices_can_be_left_out():
    found = travelled(judge_federation(ROWS), with_rows=False)
    assert found.rows == ()
    assert (found.devices, found.means["shipped"], found.kinds["mixture"]) == (2, 0.875, 1)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                f"accuracy_{name}": st.integers(0, 100_000).map(lambda each: each / 100_000)
                for name in ("local", "federated", "shipped", "shipped_int8")
            }
            | {
                "shipped": st.integers(0, 3).map(float),
                "test_gained": st.just(3.0),
                "test_lost": st.just(1.0),
            },
        ),
        max_size=5,
    )
)
def test_figures_of_five_digits_travel_exactly(rows):
    verdict = judge_federation({"id": f"d-{i}", **row} for i, row in enumerate(rows))
    found = travelled(verdict)
    assert found.rows == verdict.rows
    assert (found.kinds, found.overall, found.worst) == (verdict.kinds, verdict.overall, verdict.worst)


def test_the_message_of_thousands_of_devices_is_small():
    """The longest ids, figures and words; a broker may pass 64 KiB only."""
    rows = [
        {
            "id": f"{i:064}",
            **{f"accuracy_{name}": 0.12345 for name in ("federated", "shipped", "shipped_int8")},
            "accuracy_local": 0.12344 - i / 1e6,
            "shipped": 2.0,
            "test_gained": 1.0,
            "test_lost": 1.0,
        }
        for i in range(5000)
    ]
    verdict = judge_federation(rows, num_classes=10)
    sent = encode_json(make_verdict_message(verdict, "s" * 16, 1e9, with_rows=True))
    assert len(sent) < find_max_bytes(messages.Verdict) == 65_536
    found = read_verdict(decode_json(messages.Verdict, sent))
    assert (found.devices, len(found.rows)) == (5000, 500)
    assert [row.id for row in found.rows] == [f"{i:064}" for i in range(500)]


def test_a_hostile_message_prints_nothing_of_its_own():
    message = make_verdict_message(judge_federation(ROWS), "s", 1.0, with_rows=True)
    row = ("\x1b[2J", 1e300, -1.0, math.inf, 0.5, "\x1b[31m", "\n")
    hostile = {"rows": (row,), "gain_points": 1e300, "kinds": {"\n": 9}, "sentence": "\x1b[2J\n"}
    found = read_verdict(messages.Verdict(**{**vars(message), **hostile}))
    assert found.rows[0] == DeviceFigures("\x1b[2J", int8=0.5)
    assert (found.gain_points, sum(found.kinds.values())) == (None, 0)
    assert all(line.isprintable() for line in render_verdict_lines(found))


def test_an_unknown_comparison_of_a_newer_aggregator_is_missing():
    message = make_verdict_message(judge_federation(ROWS), "s", 1.0, with_rows=True)
    row = (*message.rows[0][:-1], "splendid")
    newer = messages.Verdict(
        **{**vars(message), "rows": (row,), "overall": "splendid", "means": {"auc": 0.5}}
    )
    found = read_verdict(newer)
    assert (found.rows[0].comparison, found.overall, found.means["local"]) == ("", "", None)
