"""Topics: parsing is the inverse of formatting, and other topics are refused."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError, WireError
from edgefl.base.names import check_client_id
from edgefl.protocol.wire.topics import Address, FederationTopics, parse_topic

IDS = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True)
HASHES = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)


def test_topics_have_the_documented_form():
    topics = FederationTopics("home")
    assert topics.state == "edgefl/v2/home/state"
    assert topics.format_device("pi-1", "status") == "edgefl/v2/home/device/pi-1/status"
    assert (
        topics.format_upload("pi-1", "ab" * 32, "begin") == f"edgefl/v2/home/device/pi-1/up/{'ab' * 32}/begin"
    )


@given(name=IDS, client=IDS, sha=HASHES, number=st.integers(0, 10**8))
@settings(deadline=None, max_examples=30)
def test_formatted_topics_parse_back(name, client, sha, number):
    topics = FederationTopics(name)
    assert parse_topic(topics.state) == Address(federation=name, kind="state")
    assert parse_topic(topics.clusters) == Address(federation=name, kind="clusters")
    assert parse_topic(topics.verdict) == Address(federation=name, kind="verdict")
    assert parse_topic(topics.format_summary(number)) == Address(
        federation=name, kind="summary", round=number
    )
    assert parse_topic(topics.format_manifest(sha)) == Address(federation=name, kind="manifest", sha256=sha)
    assert parse_topic(topics.format_blob(sha, number)) == Address(
        federation=name, kind="blob", sha256=sha, index=number
    )
    for leaf in ("status", "metrics", "anomaly", "task", "receipt", "want", "claim"):
        assert parse_topic(topics.format_device(client, leaf)) == Address(
            federation=name, kind=leaf, client_id=client
        )
    assert parse_topic(topics.format_upload(client, sha, number)) == Address(
        federation=name, kind="chunk", client_id=client, sha256=sha, index=number
    )
    assert parse_topic(topics.format_upload(client, sha, "end")) == Address(
        federation=name, kind="end", client_id=client, sha256=sha
    )


@given(st.text(max_size=80) | st.from_regex(r"edgefl/v2/[a-z+#/]{0,30}", fullmatch=True))
@settings(deadline=None, max_examples=200)
def test_any_text_parses_or_is_a_wire_error(text):
    with contextlib.suppress(WireError):
        assert parse_topic(text).federation


@pytest.mark.parametrize(
    "topic",
    [
        "edgefl/v2/home",
        "edgefl/v3/home/state",
        "edgefl/v2/home/state/",
        "/edgefl/v2/home/state",
        "edgefl/v2/Home/state",
        "edgefl/v2/home/device/../status",
        "edgefl/v2/home/device/pi-1/secrets",
        "edgefl/v2/home/round/x/summary",
        "edgefl/v2/home/round/01/summary",
        f"edgefl/v2/home/blob/{'A' * 64}/0",
        f"edgefl/v2/home/device/pi-1/up/{'a' * 63}/0",
    ],
)
def test_foreign_topics_are_wire_errors(topic):
    with pytest.raises(WireError, match="topic"):
        parse_topic(topic)


@pytest.mark.parametrize(
    "bad", ["", "Pi", "pi/1", "pi+", "#", "-pi", "a" * 65, "pi 1", "café", "cohort", "init"]
)
def test_bad_client_ids_are_config_errors_with_a_remedy(bad):
    with pytest.raises(ConfigError, match="such as pi-1"):
        check_client_id(bad)
