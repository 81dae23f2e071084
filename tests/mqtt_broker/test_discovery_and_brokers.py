"""Home Assistant discovery when the broker is restarted or refuses it."""

import signal

from edgefl.protocol.transport.link import Link, Message


def test_broker_without_retained_messages_gets_them_again(federate, services, toys):
    broker = services.Broker()
    try:
        federation = federate(f"mqtt://127.0.0.1:{broker.port}", min_clients=3)
        aggregator = federation.aggregator("--home-assistant")
        device = federation.device("pi-1", toys.shard(1))
        aggregator.wait_for("pi-1 is online")
        broker.kill()
        broker.start()
        link = Link(federation.url, "reader")
        link.subscribe("homeassistant/#")
        topics = set()
        while len(topics) < 13:
            event = link.get(40.0)
            assert isinstance(event, Message), (sorted(topics), aggregator.err)
            assert event.payload
            topics.add(event.topic)
        link.close()
        for process in (device, aggregator):
            process.popen.terminate()
            assert process.end() == 0
    finally:
        broker.kill()


def test_refused_discovery_ends_the_observer_but_no_round(secured_broker, federate, toys):
    """An access list of an older version. MQTT 5 reports the refusal."""
    acl = secured_broker.directory / "acl"
    lines = acl.read_text().splitlines(keepends=True)
    acl.write_text("".join(line for line in lines if "homeassistant" not in line))
    secured_broker.popen.send_signal(signal.SIGHUP)
    federation = federate(f"{secured_broker.url}?protocol=5", rounds=1, min_clients=1)
    aggregator = federation.aggregator(
        "--security", secured_broker.directory, "--broker", federation.url, "--home-assistant"
    )
    aggregator.wait_for("other tools receive no more messages")
    assert "check the broker's access list" in aggregator.err
    secured_broker.enrol("pi-1", federation.directory / "pi-1.enrol")
    device = federation.device("pi-1", toys.shard(1), "--enrol", federation.directory / "pi-1.enrol")
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0
