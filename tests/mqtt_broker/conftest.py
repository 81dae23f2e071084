"""Real brokers, real processes, and a puppet: a device whose every message the test writes itself."""

import contextlib
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save

from edgefl.data.npz import save_shard
from edgefl.learner.numpy_softmax import softmax_spec
from edgefl.mqtt import Link, Message
from edgefl.plan.spec import Plan, save_plan
from edgefl.types import Shard
from edgefl.wire.chunks import CHUNK_BYTES, chunk, chunk_count
from edgefl.wire.messages import Begin, End, Receipt, Status, Task
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.topics import Topics, parse_topic

DEADLINE_S = 40.0


class Process:
    """`python -m edgefl ...`, and what it has said so far."""

    def __init__(self, *arguments):
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "edgefl", *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self.said, self.changed, self.out = "", threading.Condition(), ""
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._read_err, self._read_out)]
        for thread in self._threads:
            thread.start()

    def _read_err(self):
        for line in self.popen.stderr:
            with self.changed:
                self.said += line
                self.changed.notify_all()

    def _read_out(self):
        for line in self.popen.stdout:
            with self.changed:
                self.out += line
                self.changed.notify_all()

    def wait_for(self, text):
        with self.changed:
            assert self.changed.wait_for(lambda: text in self.said or self.popen.poll() is not None, DEADLINE_S), self.said
            self.changed.wait_for(lambda: text in self.said, 5.0)
        assert text in self.said, self.said

    def first_line(self):
        with self.changed:
            assert self.changed.wait_for(lambda: "\n" in self.out, DEADLINE_S), self.said
        return self.out.splitlines()[0]

    def end(self, timeout_s=DEADLINE_S):
        """Wait for its end; return exit code, with `out` and `said` complete."""
        code = self.popen.wait(timeout_s)
        for thread in self._threads:
            thread.join(10)
        assert "Traceback" not in self.said, self.said
        return code

    def close(self):
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(10)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        self.popen.wait()
        for thread in self._threads:
            thread.join(10)
        self.popen.stdout.close()
        self.popen.stderr.close()


@pytest.fixture
def start():
    made = []

    def make(*arguments):
        made.append(Process(*arguments))
        return made[-1]

    yield make
    for process in reversed(made):
        process.close()


def broker_of(kind):
    process = Process("broker", "start", "--port", "0", "--kind", kind, "--json")
    return process, json.loads(process.first_line())["url"]


@pytest.fixture(scope="session")
def mosquitto_url():
    process, url = broker_of("mosquitto")
    yield url
    process.close()


@pytest.fixture(scope="session")
def amqtt_url():
    pytest.importorskip("amqtt")
    process, url = broker_of("amqtt")
    yield url
    process.close()


@pytest.fixture(params=["mosquitto", "amqtt"])
def any_url(request):
    return request.getfixturevalue(f"{request.param}_url")


def toy_plan(features=4, **options):
    return Plan(replace(softmax_spec("pfl-mfe", inputs=4, features=features, classes=3), options={"epochs": 2, **options}), b"", b"")


def toy_weights(features=4):
    head = {"head/kernel": np.zeros((features, 3), np.float32), "head/bias": np.zeros(3, np.float32)}
    return {"trunk/kernel": np.eye(4, features, dtype=np.float32), **head}


def toy_shard(seed, count=30):
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(3), rng.integers(0, 3, count + 7)])
    x = (np.eye(3, 4)[y] * 2 + rng.normal(0, 0.7, (count + 10, 4))).astype(np.float32)
    return Shard(x[:count], y[:count], x[count:], y[count:], 3)


class Federation:
    """A toy federation of its own name on a broker, in a directory."""

    def __init__(self, url, directory, start, **settings):
        self.url, self.directory, self.start = url, directory, start
        self.name = f"t{secrets.token_hex(4)}"
        self.options = settings.pop("options", {})
        self.settings = {"rounds": 3, "min_clients": 2, "grace_s": 0.3, "deadline_s": 30.0, **settings}
        features = 5_000 if self.settings.pop("wide", False) else 4
        self.plan, self.topics = toy_plan(features, **self.options), Topics(self.name)
        save_plan(self.plan, directory / "plan")
        (directory / "plan" / "initial.safetensors").write_bytes(save(toy_weights(features)))
        self.out = directory / "out"

    def aggregator(self, *more):
        rows = "\n".join(f"{key} = {json.dumps(value)}" for key, value in self.settings.items())
        config = self.directory / "federation.toml"
        config.write_text(f'[federation]\nname = "{self.name}"\n{rows}\n[algorithm]\nname = "pfl-mfe"\n[broker]\nurl = "{self.url}"\n')
        return self.start("aggregator", "start", "--config", config, "--plan", self.directory / "plan", "--out", self.out, *more)

    def device(self, client_id, shard=None, *more):
        data = self.directory / f"{client_id}.npz"
        if shard is not None:
            save_shard(data, shard)
        return self.start(
            "device", "start", "--broker", self.url, "--federation", self.name, "--id", client_id, "--data", data,
            "--state", self.directory / f"state-{client_id}", "--learner", "numpy", "--no-export", "--json", *more,
        )  # fmt: skip

    def result(self):
        return json.loads((self.out / "result.json").read_text())


@pytest.fixture
def federate(start, tmp_path):
    def make(url, **settings):
        return Federation(url, tmp_path, start, **settings)

    return make


class Puppet:
    """A device without a will of its own."""

    def __init__(self, federation, client_id):
        self.topics, self.client_id = federation.topics, client_id
        self.status = Status(client_id, secrets.token_hex(8), True, time.time(), 10, "0", time.time())
        will = Message(self.topics.device(client_id, "status"), encode_json(replace(self.status, online=False)), retained=True)
        self.link = Link(federation.url, f"puppet-{client_id}-{self.status.boot_id}", will=will)
        self.inbox = {"task": deque(), "receipt": deque()}
        self.link.subscribe(self.topics.device(client_id, "task"), self.topics.device(client_id, "receipt"))
        self.link.publish(self.topics.device(client_id, "status"), encode_json(self.status), retain=True)

    def next(self, kind):
        """Return the next message of that kind, task or receipt; those of the other kind are kept."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.inbox[kind] and time.monotonic() < deadline:
            event = self.link.get(deadline - time.monotonic())
            if isinstance(event, Message):
                self.inbox[parse_topic(event.topic).kind].append(event.payload)
        assert self.inbox[kind], f"no {kind} came"
        return decode_json(Task if kind == "task" else Receipt, self.inbox[kind].popleft())

    def begin(self, task, blob, **changes):
        """Announce an update; returns what was announced."""
        begin = Begin(
            self.client_id, task.session, task.round, task.plan, hashlib.sha256(blob).hexdigest(), len(blob), chunk_count(len(blob)),
            CHUNK_BYTES, 10, {"loss": 1.0}, task.nonce, time.time(),
        )  # fmt: skip
        begin = replace(begin, **changes)
        self.publish(begin.sha256, "begin", encode_json(begin))
        return begin

    def publish(self, sha256, leaf, payload):
        self.link.publish(self.topics.upload(self.client_id, sha256, leaf), payload)

    def send(self, task, blob, lose=(), **changes):
        """Send a whole update, save the chunks in `lose`; returns the receipt after it."""
        begin = self.begin(task, blob, **changes)
        receipt = self.next("receipt")
        if receipt.outcome == "missing":
            for index in range(begin.count):
                if index not in lose:
                    self.publish(begin.sha256, index, chunk(blob, index))
            self.publish(begin.sha256, "end", encode_json(End(begin.sha256, begin.count, time.time())))
            receipt = self.next("receipt")
        return receipt

    def shout(self, topic, payload):
        """Publish past the link's own check of sizes."""
        self.link._client.publish(topic, payload, qos=1)

    def close_hard(self):
        """Break the connection: the will speaks."""
        self.link._client.reconnect_delay_set(600, 600)
        with contextlib.suppress(OSError, AttributeError):
            self.link._client.socket().shutdown(socket.SHUT_RDWR)

    def close(self):
        self.link.publish(self.topics.device(self.client_id, "status"), encode_json(replace(self.status, online=False)), retain=True)
        self.link.close()


@pytest.fixture
def puppet():
    made = []

    def make(federation, client_id):
        made.append(Puppet(federation, client_id))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Heard:
    """All that was said on the topics under a prefix."""

    def __init__(self, url, topic):
        self.link = Link(url, f"listener-{secrets.token_hex(4)}")
        self.link.subscribe(topic)
        self.messages = []

    def until_phase(self, phase):
        """Listen until the state says that phase; returns every message so far."""
        return self._until(lambda message: message.topic.endswith("/state") and json.loads(message.payload)["phase"] == phase)

    def until(self, leaf):
        """Listen until something is said on a topic that ends so; returns every message so far."""
        return self._until(lambda message: message.topic.endswith(f"/{leaf}"))

    def until_online(self):
        """Listen until a status says online."""
        return self._until(lambda message: message.topic.endswith("/status") and json.loads(message.payload)["online"])

    def _until(self, wanted):
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            event = self.link.get(deadline - time.monotonic())
            if isinstance(event, Message):
                self.messages.append(event)
                if wanted(event):
                    return self.messages
        raise AssertionError(f"it was not said; heard {[message.topic for message in self.messages]}")


@pytest.fixture
def listen():
    made = []

    def make(federation, topic=None):
        made.append(Heard(federation.url, topic or f"{federation.topics.root}/#"))
        return made[-1]

    yield make
    for each in made:
        each.link.close()


class Toys:
    """What the tests make shards and weights of."""

    plan, weights, shard, save = staticmethod(toy_plan), staticmethod(toy_weights), staticmethod(toy_shard), staticmethod(save_shard)

    @staticmethod
    def save_initial(directory):
        (directory / "initial.safetensors").write_bytes(save(toy_weights()))


@pytest.fixture
def toys():
    return Toys


class Services:
    """The classes above, for fixtures that live longer than a test."""

    Process, Heard = Process, Heard
    save_shard = staticmethod(save_shard)


@pytest.fixture(scope="session")
def services():
    return Services
