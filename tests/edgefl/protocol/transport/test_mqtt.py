"""The link over a real mosquitto: messages, refusals, and a broker that restarts."""

import socket
import subprocess
import threading
import time

import pytest

from edgefl.base.errors import LinkError
from edgefl.protocol.transport.link import MAX_PAYLOAD_BYTES, Connected, Link, Message
from edgefl.protocol.wire.url import hide_password, parse_url, parse_urls
from mqtt_broker.broker.dev_broker import LOOPBACK_HOST, find_mosquitto
from tests.support.broker import mosquitto
from tests.support.ports import choose_port

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")


@pytest.fixture(scope="module")
def port():
    chosen = choose_port()
    with mosquitto(chosen):
        yield chosen


@pytest.fixture(
    params=["", pytest.param("?protocol=5", marks=pytest.mark.slow)], ids=["mqtt-3.1.1", "mqtt-5"]
)
def protocol(request):
    return request.param


@pytest.fixture
def url(port, protocol):
    return f"mqtt://{LOOPBACK_HOST}:{port}{protocol}"


@pytest.fixture
def make_link(url):
    made = []

    def make(name, **options):
        made.append(Link(options.pop("url", url), name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close(2.0)


def test_messages_arrive_and_payload_bytes_are_counted(make_link, until):
    one = make_link("one")
    two = make_link("two")
    two.subscribe("a/+")
    one.publish("a/b", b"hello")
    assert until(two, lambda e: e == Message(topic="a/b", payload=b"hello"))
    assert (one.bytes_up, two.bytes_down) == (5, 5)
    assert one.wait_in_flight(1, 5.0)
    assert one.get(0.0) is None


def test_retained_messages_are_marked_and_unsubscribed_topics_are_silent(make_link, until):
    one = make_link("one")
    two = make_link("two")
    one.publish("r/state", b"here", retain=True)
    assert one.wait_in_flight(1, 5.0)
    two.subscribe("r/state", "r/end")
    assert until(two, lambda e: e == Message(topic="r/state", payload=b"here", retained=True))
    two.unsubscribe("r/state")
    one.publish("r/state", b"", retain=True)
    one.publish("r/end", b"end")
    assert until(two, lambda e: True) == Message(topic="r/end", payload=b"end")


def test_last_will_is_sent_for_broken_but_not_for_closed_links(make_link, until):
    watcher = make_link("watcher")
    watcher.subscribe("will/+")
    closed = Link(watcher.url, "closed", will=Message(topic="will/closed", payload=b"gone"))
    broken = Link(watcher.url, "broken", will=Message(topic="will/broken", payload=b"gone"))
    assert closed.close()
    broken._client.socket().shutdown(socket.SHUT_RDWR)
    assert until(watcher, lambda e: e.topic.startswith("will/")).topic == "will/broken"
    broken.close()


def test_link_closed_with_unread_messages_sends_no_last_will(make_link):
    """Unread data must not cause a TCP reset that overtakes the disconnect. This happened to 1% of links."""
    watcher = make_link("watcher")
    publisher = make_link("speaker")
    enough = threading.Event()
    watcher.subscribe("will/+")

    def publish_noise():
        while not enough.is_set():
            publisher.publish("noise", bytes(200), qos=0)

    publishing = threading.Thread(target=publish_noise)
    publishing.start()
    try:
        for i in range(100):
            closing = Link(watcher.url, f"leaving-{i}", will=Message(topic=f"will/{i}", payload=b"gone"))
            closing.subscribe("noise")
            assert closing.get(20.0)
            assert closing.close()
    finally:
        enough.set()
        publishing.join()
    assert watcher.get(0.5) is None


def test_close_waits_for_all_published_messages(make_link, until):
    reader = make_link("reader")
    reader.subscribe("bulk/+")
    writer = Link(reader.url, "writer")
    for i in range(40):
        writer.publish(f"bulk/{i}", bytes(60_000))
    assert writer.close(20.0)
    assert {until(reader, lambda e: True).topic for _ in range(40)} == {f"bulk/{i}" for i in range(40)}


def test_an_oversize_message_is_not_sent(make_link):
    with pytest.raises(LinkError, match=r"big is 300000 bytes, expected at most 261120; send it in chunks"):
        make_link("one").publish("big", bytes(300_000))
    assert MAX_PAYLOAD_BYTES == 261_120


def test_wake_ends_the_wait_for_an_event_after_those_that_wait(make_link, until):
    one, two = make_link("one"), make_link("two")
    two.subscribe("x")
    one.publish("x", b"first")
    assert until(two, lambda e: True).payload == b"first"
    threading.Timer(0.1, two.wake).start()
    assert two.get(600.0) is None, "the test's own timeout is shorter"
    two.wake()
    assert two.get(600.0) is None


def test_an_exception_on_the_network_thread_reaches_the_service(make_link, until):
    called = threading.Event()

    def raise_error():
        called.set()
        raise ZeroDivisionError

    one = make_link("one", after_message=raise_error)
    one.subscribe("x")
    one.publish("x", b"")
    assert called.wait(10)
    with pytest.raises(LinkError, match="ZeroDivisionError"):
        until(one, lambda e: False)


def test_restarted_broker_gets_subscriptions_and_unsent_messages(protocol, until):
    port = choose_port()
    with mosquitto(port):
        one, two = (Link(f"mqtt://{LOOPBACK_HOST}:{port}{protocol}", name) for name in ("one", "two"))
        two.subscribe("a/+")
    one.publish("a/late", b"kept")
    with mosquitto(port):
        assert until(two, lambda e: isinstance(e, Connected), 30.0)
        assert until(one, lambda e: isinstance(e, Connected), 30.0)
        # A broker answers in order: when it grants this subscription, it has renewed the earlier ones
        two.subscribe("b")
        one.publish("a/new", b"new")
        # A message that was published during the restart may arrive before `two` subscribes again. Then the
        # protocol sends it again.
        assert until(two, lambda e: isinstance(e, Message) and e.topic == "a/new").payload == b"new"
        one.close()
        two.close()


def test_missing_broker_error_has_url_and_remedy():
    port = choose_port()
    with pytest.raises(LinkError, match=rf"no broker at mqtt://{LOOPBACK_HOST}:{port}.*edgefl broker start"):
        Link(f"mqtt://{LOOPBACK_HOST}:{port}", "one")


def test_server_without_mqtt_is_an_error():
    with (
        socket.create_server((LOOPBACK_HOST, 0)) as server,
        pytest.raises(LinkError, match="did not answer in MQTT"),
    ):
        Link(f"mqtt://{LOOPBACK_HOST}:{server.getsockname()[1]}", "one", timeout_s=0.3)


def test_refused_login_error_has_reason_and_no_password(tmp_path):
    port = choose_port()
    conf = tmp_path / "m.conf"
    conf.write_text(f"listener {port} {LOOPBACK_HOST}\nallow_anonymous false\n")
    process = subprocess.Popen([find_mosquitto(), "-c", str(conf)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            with pytest.raises(LinkError) as caught:
                Link(f"mqtt://pi:s3cret@{LOOPBACK_HOST}:{port}", "one")
            if "refused: " in str(caught.value) or time.monotonic() > deadline:
                break
        assert "check user and password" in str(caught.value)
        assert "s3cret" not in str(caught.value)
    finally:
        process.terminate()
        process.wait()


def test_urls_are_parsed_and_validated():
    made = parse_url("mqtts://pi:a%40b@broker.local")
    assert (made.host, made.port, made.tls, made.username, made.password) == (
        "broker.local",
        8883,
        True,
        "pi",
        "a@b",
    )
    assert (made.protocol, made.display_url) == (4, "mqtts://...@broker.local")
    assert [
        parse_url(f"mqtt://h{query}").protocol for query in ("?protocol=3.1.1", "?protocol=5", "/?protocol=5")
    ] == [4, 5, 5]
    several = parse_urls("mqtt://a:1,mqtt://u:p,w@b,mqtt://c:3")
    assert [(each.host, each.port, each.password) for each in several] == [
        ("a", 1, ""),
        ("b", 1883, "p,w"),
        ("c", 3, ""),
    ]
    assert hide_password("mqtt://a:1,mqtt://u:p,w@b,mqtt://c") == "mqtt://a:1,mqtt://...@b,mqtt://c"
    for bad in (
        "localhost:1883",
        "http://x",
        "mqtt://",
        "mqtt://h:99999",
        "mqtt://h/path",
        "mqtt://u:s3cret@",
        "mqtt://h?protocol=4",
        "mqtt://a,b",
        "mqtt://a,",
        "mqtt://u:s3cret@a,http://b",
    ):
        with pytest.raises(LinkError, match="expected mqtt://HOST:PORT") as caught:
            parse_urls(bad)
        assert "s3cret" not in str(caught.value)
    for bad in ("mqtt://a,mqtts://b", "mqtt://a,mqtt://b?protocol=5"):
        with pytest.raises(LinkError, match="expected the same for all brokers of a cluster"):
            parse_urls(bad)
