"""The message of a verdict: round trips with five digits, and a limited size."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.system.format import format_percent
from edgefl.base.verdict import DeviceFigures, judge_federation, render_verdict_lines
from edgefl.protocol.wire import messages
from edgefl.protocol.wire.strict_json import decode_json, encode_json, find_max_bytes
from edgefl.protocol.wire.verdict_message import make_verdict_message, read_verdict

ROWS = [
    {"id": "pi-1", "accuracy_local": 0.5, "accuracy_shipped": 0.75, "shipped": 3.0, "test_gained": 9.0},
    {"id": "pi-2", "accuracy_local": 1 / 3, "accuracy_shipped": 1.0, "test_gained": 9.0, "test_lost": 0.0},
]


def round_trip(verdict, **options):
    sent = encode_json(make_verdict_message(verdict, "s", 1.0, **{"with_rows": True, **options}))
    return read_verdict(decode_json(messages.Verdict, sent))


def test_message_has_the_figures_of_the_verdict():
    verdict = judge_federation(ROWS)
    message = make_verdict_message(verdict, "s", 2.5, with_rows=True)
    assert (message.session, message.ts, message.devices, message.better) == ("s", 2.5, 2, 1)
    assert message.means["shipped"] == 0.875
    assert math.isnan(message.means["int8"])
    assert [row[:2] for row in message.rows] == [("pi-1", 0.5), ("pi-2", 0.33333)]
    assert message.rows[1][3:] == (1.0, message.rows[1][4], "", "better")
    decoded = round_trip(verdict)
    assert decoded.rows[1].local == 0.33333
    assert decoded.rows[1].int8 is None
    assert decoded.sentence == verdict.sentence


def test_reader_and_aggregator_print_the_same_percentage():
    share = 293 / 325  # 90.154%; four digits would give 90.15%, which is 90.1% on a page
    decoded = round_trip(judge_federation([{"id": "pi-1", "accuracy_local": 0.5, "accuracy_shipped": share}]))
    assert format_percent(decoded.rows[0].shipped) == format_percent(share) == "90.2%"


def test_figures_of_single_devices_can_be_left_out():
    decoded = round_trip(judge_federation(ROWS), with_rows=False)
    assert decoded.rows == ()
    assert (decoded.devices, decoded.means["shipped"], decoded.kinds["mixture"]) == (2, 0.875, 1)


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
def test_five_digit_figures_round_trip_exactly(rows):
    verdict = judge_federation({"id": f"d-{i}", **row} for i, row in enumerate(rows))
    decoded = round_trip(verdict)
    assert decoded.rows == verdict.rows
    assert (decoded.kinds, decoded.overall, decoded.worst) == (verdict.kinds, verdict.overall, verdict.worst)


def test_the_message_of_thousands_of_devices_is_small():
    """Ids and figures have their maximum length. A broker may limit messages to 64 KiB."""
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
    decoded = read_verdict(decode_json(messages.Verdict, sent))
    assert (decoded.devices, len(decoded.rows)) == (5000, 500)
    assert [row.id for row in decoded.rows] == [f"{i:064}" for i in range(500)]


def test_hostile_message_prints_no_control_characters():
    message = make_verdict_message(judge_federation(ROWS), "s", 1.0, with_rows=True)
    row = ("\x1b[2J", 1e300, -1.0, math.inf, 0.5, "\x1b[31m", "\n")
    hostile = {"rows": (row,), "gain_points": 1e300, "kinds": {"\n": 9}, "sentence": "\x1b[2J\n"}
    decoded = read_verdict(messages.Verdict(**{**vars(message), **hostile}))
    assert decoded.rows[0] == DeviceFigures(id="\x1b[2J", int8=0.5)
    assert (decoded.gain_points, sum(decoded.kinds.values())) == (None, 0)
    assert all(line.isprintable() for line in render_verdict_lines(decoded))


def test_an_unknown_comparison_of_a_newer_aggregator_is_missing():
    message = make_verdict_message(judge_federation(ROWS), "s", 1.0, with_rows=True)
    row = (*message.rows[0][:-1], "splendid")
    newer = messages.Verdict(
        **{**vars(message), "rows": (row,), "overall": "splendid", "means": {"auc": 0.5}}
    )
    decoded = read_verdict(newer)
    assert (decoded.rows[0].comparison, decoded.overall, decoded.means["local"]) == ("", "", None)
