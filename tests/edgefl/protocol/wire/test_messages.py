"""Messages: every dataclass round-trips through JSON, and errors name the wrong field."""

import dataclasses
import json
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgefl.base.errors import WireError
from edgefl.base.system.files import to_json_value
from edgefl.protocol.wire import messages
from edgefl.protocol.wire.messages import (
    Anomaly,
    Begin,
    Claim,
    End,
    Manifest,
    Metrics,
    Receipt,
    State,
    Status,
    Summary,
    Task,
    Want,
)
from edgefl.protocol.wire.strict_json import decode_json, encode_json

TEXT = st.text(max_size=20)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(0, 2**62)
RANGES = st.lists(st.tuples(WHOLE, WHOLE), max_size=5).map(tuple)
BY_TYPE = {
    "str": TEXT,
    "int": WHOLE,
    "float": NUMBER,
    "bool": st.booleans(),
    "Ranges": RANGES,
    "tuple[str, ...]": st.lists(TEXT, max_size=4).map(tuple),
    "Mapping[str, float]": st.dictionaries(TEXT, NUMBER, max_size=4),
    "Mapping[str, str]": st.dictionaries(TEXT, TEXT, max_size=4),
}
KINDS = [State, Status, Claim, Task, Manifest, Begin, End, Receipt, Want, Summary, Metrics, Anomaly]


def name_type(annotation):
    if annotation == messages.Ranges:
        return "Ranges"
    return (
        annotation.__name__
        if isinstance(annotation, type)
        else str(annotation).replace("collections.abc.", "")
    )


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(deadline=None, max_examples=15)
def test_every_message_round_trips_through_json(kind, data):
    made = kind(**{f.name: data.draw(BY_TYPE[name_type(f.type)]) for f in dataclasses.fields(kind)})
    assert decode_json(kind, encode_json(made)) == made


def encode_receipt(**changes):
    raw = {
        "round": 1,
        "sha256": "a",
        "outcome": "ok",
        "missing": [],
        "reason": "",
        "nonce": "",
        "ts": 1.5,
        "signature": "",
    }
    return json.dumps({k: v for k, v in (raw | changes).items() if v is not ...}).encode()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 1}, "unknown field 'rounds'"),
        ({"round": ...}, "lacks the field 'round'"),
        ({"round": "1"}, "Receipt.round is '1', expected a whole number"),
        ({"round": 1.5}, "whole number"),
        ({"round": True}, "whole number"),
        ({"round": 2**70}, "whole number"),
        ({"ts": "now"}, "a number"),
        ({"reason": None}, "text"),
        ({"reason": "x" * 2000}, "at most 1024"),
        ({"reason": "half \ud800"}, "whole characters"),
        ({"missing": [[0]]}, "a list of 2"),
        ({"missing": [[0, 1]] * 5000}, "at most 1024"),
        ({"missing": {"0": 1}}, "a list"),
    ],
)
def test_error_names_field_and_expectation(changes, message):
    with pytest.raises(WireError) as caught:
        decode_json(Receipt, encode_receipt(**changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 20000, b'{"ts":1,"ts":2}', b" " * 70_000]
)
def test_payload_without_a_json_object_is_a_wire_error(payload):
    with pytest.raises(WireError):
        decode_json(Receipt, payload)


@given(st.binary(max_size=200))
@example(b'{"boot_id": "b1", "ts": 2.5}')
@settings(deadline=None, max_examples=100)
def test_any_bytes_are_a_wire_error_or_a_message(payload):
    try:
        claim = decode_json(Claim, payload)
    except WireError as error:
        assert "Claim" in str(error) or "JSON" in str(error)
    else:
        assert decode_json(Claim, encode_json(claim)) == claim


def test_unicode_text_round_trips_and_lone_surrogates_are_refused():
    metrics = Metrics(
        client_id="pi-1",
        round=1,
        values={"Verlust \U0001f600": 1.0, "é": 2.0},
        rss_mb=50.0,
        peak_rss_mb=60.0,
        temperature_c=1.0,
        seconds=1.0,
        ts=0.0,
    )
    assert decode_json(Metrics, encode_json(metrics)) == metrics
    with pytest.raises(WireError, match=r"Metrics.values is .*, expected an object"):
        decode_json(Metrics, encode_json(dataclasses.replace(metrics, values={"\ude00": 1.0})))


def test_a_number_that_is_not_finite_arrives_as_nan():
    payload = encode_json(
        Metrics(
            client_id="pi-1",
            round=1,
            values={"loss": math.inf, "accuracy": math.nan},
            rss_mb=50.0,
            peak_rss_mb=60.0,
            temperature_c=math.nan,
            seconds=1.0,
            ts=0.0,
        )
    )
    assert json.loads(payload)["values"] == {"loss": None, "accuracy": None}
    assert json.loads(payload)["temperature_c"] is None
    decoded = decode_json(Metrics, payload)
    assert all(math.isnan(v) for v in (*decoded.values.values(), decoded.temperature_c))


def test_message_that_is_too_large_is_not_encoded():
    with pytest.raises(WireError, match="at most 65536"):
        encode_json(
            Task(
                session="s",
                round=1,
                phase="federate",
                plan="p",
                models={},
                scalars={f"m{i}" * 20: 1.0 for i in range(2000)},
                seed=1,
                deadline_s=9.0,
                codec="fp32",
                max_staleness=0,
                budget_s=0.0,
                nonce="n",
                ts=0.0,
            )
        )


def test_metrics_size_is_limited_when_encoding_and_decoding():
    """A message for a dozen numbers must not carry a weight vector."""
    large = Metrics(
        client_id="pi-1",
        round=1,
        values={f"w{i}": 0.123456789 for i in range(300)},
        rss_mb=1.0,
        peak_rss_mb=1.0,
        temperature_c=1.0,
        seconds=1.0,
        ts=0.0,
    )
    with pytest.raises(WireError, match="expected at most 4096"):
        encode_json(large)
    with pytest.raises(WireError, match="expected at most 4096"):
        decode_json(Metrics, json.dumps(dataclasses.asdict(large)).encode())


@pytest.mark.parametrize("number", [b"1" + b"0" * 400, b"-1" + b"0" * 309, b"1e999", b"Infinity", b"NaN"])
def test_numbers_beyond_a_double_are_wire_errors(number):
    with pytest.raises(WireError, match=r"Claim\.ts .* expected a number"):
        decode_json(Claim, b'{"boot_id": "a", "ts": ' + number + b"}")


def test_an_optional_field_may_be_missing_and_a_required_one_may_not():
    """This includes fields with a Python default: tasks without `started` cannot be ordered."""
    task = json.loads(
        encode_json(
            Task(
                session="s",
                round=1,
                phase="federate",
                plan="p",
                models={},
                scalars={},
                seed=1,
                deadline_s=9.0,
                codec="fp32",
                max_staleness=0,
                budget_s=0.0,
                nonce="n",
                ts=0.0,
                settings={"evaluate": 1.0},
            )
        )
    )
    assert decode_json(Task, json.dumps(task).encode()).settings == {"evaluate": 1.0}
    without = {name: value for name, value in task.items() if name != "settings"}
    assert decode_json(Task, json.dumps(without).encode()).settings == {}
    for name in without:
        with pytest.raises(WireError, match=f"lacks the field '{name}'"):
            decode_json(
                Task, json.dumps({key: value for key, value in without.items() if key != name}).encode()
            )
    with pytest.raises(WireError, match=r"Summary\.metrics is '1', expected an object"):
        decode_json(
            Summary,
            encode_json(
                Summary(
                    round=1,
                    phase="p",
                    updates=0,
                    loss=0.0,
                    accuracy_mean=0.0,
                    accuracy_p10=0.0,
                    accuracy_p90=0.0,
                    bytes_up=0,
                    bytes_down=0,
                    seconds=0.0,
                    dropped=(),
                    ts=0.0,
                )
            ).replace(b"{}", b"1"),
        )


def encode_loosely(message):
    """Return a message as another program may write it: raw characters and short numbers."""
    values = to_json_value(dataclasses.asdict(message))
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (lambda i: f"{i:03d}" + "\x7f" * 100, 1),
        (lambda i: f"{i:03d}" + "\u00e9" * 100, 1),
        (lambda i: f"{i:03d}" + "\U0001f600" * 30, 1),
        (lambda i: f"{i:03d}", 10**15),
    ],
    ids=["delete", "two bytes", "four bytes", "numbers"],
)
@pytest.mark.parametrize("count", [100, 150, 400, 1000])
def test_message_that_is_read_can_be_stored(names, value, count):
    begin = Begin(
        client_id="pi-1",
        session="s",
        round=1,
        plan="p",
        sha256="ab" * 32,
        size=10,
        count=1,
        chunk_bytes=65536,
        num_samples=5,
        metrics={},
        nonce="n1",
        ts=0.0,
    )
    payload = encode_loosely(dataclasses.replace(begin, metrics={names(i): value for i in range(count)}))
    try:
        message = decode_json(Begin, payload)
    except WireError as error:
        assert "expected at most 65536" in str(error)
        assert len(payload) > 65536 // 8
    else:
        assert len(encode_json(message)) <= 65536


def test_message_that_fits_when_sent_and_not_when_stored_is_refused():
    begin = Begin(
        client_id="pi-1",
        session="s",
        round=1,
        plan="p",
        sha256="ab" * 32,
        size=10,
        count=1,
        chunk_bytes=65536,
        num_samples=5,
        metrics={"\x7f" * 1000: 1.0},
        nonce="n1",
        ts=0.0,
    )
    assert decode_json(Begin, encode_loosely(begin)).metrics == begin.metrics
    names = {f"{i}" + "\x7f" * 1000: 1.0 for i in range(20)}
    payload = encode_loosely(dataclasses.replace(begin, metrics=names))
    assert len(payload) < 65536
    with pytest.raises(WireError, match=r"Begin is 12\d{4} bytes, expected at most 65536"):
        decode_json(Begin, payload)
