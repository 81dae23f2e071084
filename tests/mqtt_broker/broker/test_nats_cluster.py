"""NATS as the broker: one server, a federation over a cluster of three servers one of which is killed,
and attacks on a cluster with keys.
"""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.config import FederationConfig
from edgefl.base.errors import LinkError
from edgefl.learning.checkpoint import decode_server_state, decode_stored_mixture
from edgefl.protocol.security.authority import create_enrolment, create_key_directory
from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context, save_enrolment
from edgefl.protocol.transport.link import Connected, Link, Message
from edgefl.simulation.simulate import simulate
from mqtt_broker.broker.dev_broker import LOOPBACK_HOST
from tests.support.numpy_learner.softmax import SoftmaxLearner
from tests.support.ports import choose_port

NATS = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/sbin")
TEMPLATES = Path(__file__).parents[3] / "mqtt_broker" / "broker" / "clusters"
TIMEOUT_S = 90.0

pytestmark = pytest.mark.skipif(NATS is None, reason="nats-server is not installed")


def make_access_list(devices):
    """Return the access list of the project, with a block for each device."""
    head, mark, rest = (
        (TEMPLATES / "nats-access.conf").read_text().partition("    # Repeat this block for each device\n")
    )
    block, end, tail = rest.rpartition("    }\n")
    return head + mark + "".join((block + end).replace("@DEVICE@", device) for device in devices) + tail


class Cluster:
    """nats-servers with the configuration of the project."""

    def __init__(self, directory, count, keys=None, devices=(), address=LOOPBACK_HOST):
        ports = self.ports = [[choose_port() for _ in range(3)] for _ in range(count)]
        routes = ", ".join(f"nats://{LOOPBACK_HOST}:{route}" for _, _, route in ports)
        self.urls = [f"mqtt://{LOOPBACK_HOST}:{mqtt}" for _, mqtt, _ in ports]
        self.servers = []
        self.directory = directory
        if keys:  # written before a server starts: a server that reads an incomplete list admits everybody
            (directory / "nats-access.conf").write_text(make_access_list(devices))
        for index, (client, mqtt, route) in enumerate(ports):
            values = {
                "NAME": f"n{index}",
                "ADDRESS": address,
                "CLIENT_PORT": client,
                "MQTT_PORT": mqtt,
                "ROUTE_PORT": route,
                "DIRECTORY": directory / f"n{index}",
                "ROUTES": routes,
                "REPLICAS": count,
                "KEYS": keys,
            }
            text = (TEMPLATES / "nats.conf").read_text()
            if keys:
                text = text.replace("  # tls", "  tls").replace("# include", "include")
            for name, value in values.items():
                text = text.replace(f"@{name}@", str(value))
            conf = directory / f"n{index}.conf"
            # a single server must not wait for others
            conf.write_text(text if count > 1 else text[: text.index("cluster {")])
            with (directory / f"n{index}.log").open("w") as log:
                self.servers.append(subprocess.Popen([NATS, "-c", str(conf)], stdout=log, stderr=log))
        if not keys:  # servers with keys admit only enrolled clients
            for url in self.urls:
                self.wait_until_up(url)

    def wait_until_up(self, url, **identity):
        """Wait until a server accepts a client, which it does when the cluster has a leader."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                Link(url, "probe", timeout_s=5.0, **identity).close()
                return
            except LinkError:
                if time.monotonic() > deadline:
                    raise AssertionError(
                        "\n".join(log.read_text() for log in self.directory.glob("*.log"))
                    ) from None

    def list_urls_from(self, index):
        """Return all urls, starting with that server."""
        return ",".join(self.urls[index:] + self.urls[:index])

    def kill(self, index):
        self.servers[index].send_signal(signal.SIGKILL)
        self.servers[index].wait()

    def close(self):
        for server in self.servers:
            server.kill()
            server.wait()


@pytest.fixture(scope="module")
def single_server(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("nats"), 1)
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path, 3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def enrolled_cluster(tmp_path_factory):
    """Three servers with keys, and the TLS contexts of the aggregator and two boards."""
    tmp_path = tmp_path_factory.mktemp("enrolled")
    keys = tmp_path / "keys"
    names = ("one", "two")
    create_key_directory(keys, ["localhost"], 8883, 30)
    contexts = {name: make_tls_context(create_enrolment(keys, name, 30)) for name in names}
    contexts["aggregator"] = make_tls_context(load_enrolment(keys / "aggregator.enrol"))
    made = Cluster(tmp_path, 3, keys, names)
    made.urls = [url.replace(f"mqtt://{LOOPBACK_HOST}", "mqtts://localhost") for url in made.urls]
    for url in made.urls:
        made.wait_until_up(url, context=contexts["one"])
    yield made, contexts
    made.close()


class Nats:
    """A client of NATS's own protocol."""

    def __init__(self, port, host=LOOPBACK_HOST):
        self._socket = socket.create_connection((host, port), 10.0)
        self.answer = b""

    def send(self, *lines, until=(b"PONG", b"-ERR")):
        """Send lines and return the whole answer when it contains one of `until` or the connection ended."""
        self._socket.sendall("".join(f"{line}\r\n" for line in lines).encode())
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while not any(each in self.answer for each in until) and (more := self._socket.recv(65536)):
                self.answer += more
        return self.answer

    def has_received(self, payload):
        """Return whether a message with this payload has arrived."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.answer += self._socket.recv(1 << 20)
        return payload in self.answer

    def close(self):
        self._socket.close()


def check_bits(federation, toys, shards, settings):
    """Check that server state and mixtures match the simulator byte for byte."""
    end = simulate(
        federation.plan,
        toys.weights(),
        shards,
        FederationConfig(**settings),
        open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
    )
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert (state.round, state.phase) == (settings["rounds"] + 1, "done")
    for name, array in end.state.models["global"].items():
        assert state.models["global"][name].tobytes() == array.tobytes()
    assert np.abs(end.state.models["global"]["head/kernel"]).max() > 0.01
    for client_id, mixture in end.mixtures.items():
        found = decode_stored_mixture(
            (federation.directory / f"state-{client_id}" / "mixture.safetensors").read_bytes()
        ).mixture
        assert all(
            found.weights[name].tobytes() == array.tobytes() for name, array in mixture.weights.items()
        )
    assert federation.result()["dropped"] == []


def test_single_nats_server_matches_the_simulator(single_server, federate, toys):
    settings = {"rounds": 3, "min_clients": 3, "clients_per_round": 2, "seed": 5}
    federation = federate(single_server.urls[0], **settings)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    aggregator = federation.aggregator()
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    assert aggregator.end(TIMEOUT_S) == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0, 0], [device.err for device in devices]
    check_bits(federation, toys, shards, settings)


def test_nats_refuses_mqtt_5_and_dots_in_topics(single_server):
    """NATS refuses MQTT 5 with an error message, and a dot in a topic ends the connection each time, as
    docs/reference/brokers.md explains.
    """
    with pytest.raises(
        LinkError, match=r"refused: Unsupported protocol version; leave \?protocol=5 out of the url"
    ):
        Link(f"{single_server.urls[0]}?protocol=5", "five")
    link = Link(single_server.urls[0], "dots")
    try:
        link.publish("edgefl/v2/with.dot/state", b"never")
        version = subprocess.run([NATS, "--version"], capture_output=True, text=True, check=True).stdout
        if "v2.9." in version:
            assert isinstance(link.get(TIMEOUT_S), Connected)
            assert link.in_flight == 1
    finally:
        link.close(0.0)


def test_nats_delivers_retained_messages_and_the_last_will(single_server):
    watcher = Link(single_server.urls[0], "watcher")
    other = Link(
        single_server.urls[0], "other", will=Message(topic="w/other", payload=b"gone", retained=True)
    )
    other.publish("w/state", b"here", retain=True)
    assert other.wait_in_flight(1, TIMEOUT_S)
    watcher.subscribe("w/+")
    assert watcher.get(TIMEOUT_S) == Message(topic="w/state", payload=b"here", retained=True)
    other._client.reconnect_delay_set(600, 600)
    other._client.socket().shutdown(2)
    assert watcher.get(TIMEOUT_S) == Message(topic="w/other", payload=b"gone")
    watcher.publish("w/state", b"", retain=True)
    assert watcher.get(TIMEOUT_S) == Message(topic="w/state", payload=b"")
    late = Link(single_server.urls[0], "late")
    late.subscribe("w/+")
    assert late.get(TIMEOUT_S) == Message(topic="w/other", payload=b"gone", retained=True)
    for link in (watcher, late, other):
        link.close(1.0)


def test_enrolled_nats_devices_can_access_only_their_own_topics(tmp_path, federate, toys):
    keys = tmp_path / "keys"
    names = ("one", "two")
    create_key_directory(keys, ["localhost"], 8883, 30)
    made = {name: create_enrolment(keys, name, 30) for name in names}
    for name, enrolment in made.items():
        save_enrolment(enrolment, tmp_path / f"{name}.enrol")
    single_server = Cluster(tmp_path, 1, keys, names, address="0.0.0.0")
    try:
        url = single_server.urls[0].replace(f"mqtt://{LOOPBACK_HOST}", "mqtts://localhost")
        contexts = {name: make_tls_context(enrolment) for name, enrolment in made.items()}
        single_server.wait_until_up(url, context=contexts["one"])
        federation = federate(url, rounds=2)
        aggregator = federation.aggregator("--security", keys, "--broker", url)
        devices = [
            federation.device(name, toys.shard(i), "--enrol", tmp_path / f"{name}.enrol")
            for i, name in enumerate(names)
        ]
        assert aggregator.end(TIMEOUT_S) == 0, aggregator.err
        assert [device.end(TIMEOUT_S) for device in devices] == [0, 0], [device.err for device in devices]

        root = "edgefl/v2/f"
        leader = Link(url, "leader", context=make_tls_context(load_enrolment(keys / "aggregator.enrol")))
        one, two = (Link(url, name, context=contexts[name]) for name in names)
        leader.subscribe(f"{root}/#")
        for topic in ("state", "blob/aa/0", "device/two/status", "device/two/task", "device/one/status"):
            one.publish(f"{root}/{topic}", b"of one")
        assert [leader.get(TIMEOUT_S).topic, leader.get(0.5)] == [f"{root}/device/one/status", None]
        two.subscribe(f"{root}/device/two/task")
        for topic in (
            "edgefl/v1/f/state",
            f"{root}/device/one/task",
            f"{root}/device/+/task",
            f"{root}/verdict",
            f"{root}/#",
            "#",
        ):
            with pytest.raises(LinkError, match="refused the subscription"):
                two.subscribe(topic, timeout_s=0.1)
        leader.publish(f"{root}/device/one/task", b"secret")
        leader.publish(f"{root}/device/two/task", b"mine")
        assert [two.get(TIMEOUT_S).payload, two.get(0.5)] == [b"mine", None]
        with pytest.raises(LinkError):
            Link(url, "nobody")
        # another address of this machine stands for the network: MQTT is reachable, NATS's own protocol is
        # not
        client_port, mqtt_port, _ = single_server.ports[0]
        socket.create_connection(("127.0.0.2", mqtt_port), 10.0).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", client_port), 10.0)
        for link in (leader, one, two):
            link.close(1.0)
    finally:
        single_server.close()


@pytest.mark.slow
def test_client_port_requires_a_certificate(enrolled_cluster):
    """Users have no password, and NATS accepts an empty password for them. Boards and aggregator work
    during the attack.
    """
    cluster, contexts = enrolled_cluster
    leader = Link(cluster.urls[1], "leader", context=contexts["aggregator"])
    board = Link(cluster.urls[0], "board", context=contexts["one"])
    leader.subscribe("edgefl/v2/f/device/+/status")
    board.subscribe("edgefl/v2/f/device/one/task")
    logins = {}
    for user in ("CN=aggregator", "CN=one", "", None):
        stranger = Nats(cluster.ports[0][0])
        login = {"verbose": True, "user": user, "pass": ""} if user is not None else {"verbose": True}
        forged = "PUB edgefl.v2.f.device.one.task 6\r\nforged"
        # Read the answer first: a server that closes with lines unread resets the connection and loses it.
        if b"+OK" in stranger.send(f"CONNECT {json.dumps(login)}", until=(b"+OK", b"-ERR")):
            stranger.send("SUB edgefl.v2.> 1", "SUB $MQTT.sub.> 2", forged, "PING")
        logins[user] = stranger.answer.partition(b"\r\n")[2]
        stranger.close()
    board.publish("edgefl/v2/f/device/one/status", b"of the board")
    leader.publish("edgefl/v2/f/device/one/task", b"of the aggregator")
    assert leader.get(TIMEOUT_S).payload == b"of the board"
    assert [
        user
        for user, answer in logins.items()
        if b"+OK" in answer or b"Authorization Violation" not in answer
    ] == [], logins
    assert board.get(TIMEOUT_S).payload == b"of the aggregator"
    with pytest.raises(LinkError, match="refused the subscription"):
        board.subscribe("$MQTT/sub/#", timeout_s=0.1)
    for link in (leader, board):
        link.close(1.0)


@pytest.mark.slow
def test_foreign_server_cannot_join_the_cluster(enrolled_cluster, tmp_path):
    """One server has no keys, and one has the certificate of a board. The route port refuses both, and
    they receive nothing.
    """
    cluster, contexts = enrolled_cluster
    made = create_enrolment(cluster.directory / "keys", "thief", 30)
    for name, text in (("thief.pem", made.certificate), ("thief.key", made.key)):
        (tmp_path / name).write_text(text)
    board_keys = (
        f'tls {{ cert_file: "{tmp_path}/thief.pem", key_file: "{tmp_path}/thief.key", insecure: true }}'
    )
    routes = ", ".join(f"nats://{LOOPBACK_HOST}:{route}" for _, _, route in cluster.ports)
    strangers = []
    leader = Link(cluster.urls[0], "leader", context=contexts["aggregator"])
    try:
        for name, tls in (("without-keys", ""), ("with-keys-of-a-board", board_keys)):
            port = choose_port()
            log = tmp_path / f"{name}.log"
            conf = tmp_path / f"{name}.conf"
            conf.write_text(
                f'server_name: "{name}"\nlisten: "{LOOPBACK_HOST}:{port}"\ndebug: true\n'
                f'cluster {{ name: edgefl, listen: "{LOOPBACK_HOST}:{choose_port()}", '
                f"routes: [{routes}], {tls} }}\n"
            )
            with log.open("w") as file:
                process = subprocess.Popen([NATS, "-c", str(conf)], stdout=file, stderr=file)
            deadline = time.monotonic() + TIMEOUT_S
            client = None
            strangers.append((name, process, log))
            while client is None and time.monotonic() < deadline:
                with contextlib.suppress(ConnectionRefusedError):
                    client = Nats(port)
            strangers[-1] += (client,)
            assert b"PONG" in client.send('CONNECT {"verbose": false}', "SUB edgefl.v2.> 1", "PING")
        heard = set()
        refused = set()
        while len(heard | refused) < len(strangers) and time.monotonic() < deadline:
            leader.publish("edgefl/v2/f/device/one/task", b"for the board alone")
            assert leader.get(0.1) is None
            for name, _, log, client in strangers:
                if client.has_received(b"for the board alone"):
                    heard.add(name)
                elif log.read_text().count("Router connection closed") >= 2 * len(cluster.ports):
                    refused.add(name)
        assert heard == set(), "these servers of strangers joined the cluster and heard a task"
        assert refused == {name for name, *_ in strangers}
    finally:
        leader.close(1.0)
        for _, process, _, client in strangers:
            client.close()
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_server_does_not_disturb_a_round(cluster, federate, toys):
    """One device and the aggregator use the server that is killed, and each other device uses another
    server. The bits match the simulator.
    """
    settings = {"rounds": 3, "min_clients": 3, "seed": 5, "quorum": 1.0}
    federation = federate(cluster.list_urls_from(0), **settings)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    aggregator = federation.aggregator()
    devices = []
    for index, (client_id, shard) in enumerate(shards.items()):
        federation.url = cluster.list_urls_from(index)
        devices.append(federation.device(client_id, shard))
        devices[-1].wait_for(f"joined {federation.name!r} at {cluster.urls[index]}")
    aggregator.wait_for("round 1: ")  # one of three has reported
    cluster.kill(0)
    assert aggregator.end(300) == 0, aggregator.err
    assert [device.end(TIMEOUT_S) for device in devices] == [0, 0, 0], [device.err for device in devices]
    assert "the link to the broker is up again at" in aggregator.err
    assert "the link to the broker is up again at" in devices[0].err
    assert not [each for each in (aggregator, *devices) if f"up again at {cluster.urls[0]}" in each.err]
    check_bits(federation, toys, shards, settings)
