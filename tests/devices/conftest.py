"""The brokers and processes of `tests/mqtt_broker`, and an aggregator whose messages the test sends."""

import hashlib
import importlib.util
import secrets
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from devices.store import read_last_round
from edgefl.program.plan.spec import encode_plan
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.chunks import CHUNK_BYTES, count_chunks, slice_chunk
from edgefl.protocol.wire.messages import Begin, Manifest, Receipt, State, Status, Task, Want
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.protocol.wire.tensors import encode_weights
from edgefl.protocol.wire.topics import parse_topic

_spec = importlib.util.spec_from_file_location(
    "broker_conftest", Path(__file__).parent.parent / "mqtt_broker" / "conftest.py"
)
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)
start = _shared.start
mosquitto_url = _shared.mosquitto_url
federate = _shared.federate
toys = _shared.toys
listen = _shared.listen
programs_spec = importlib.util.spec_from_file_location(
    "device_programs", Path(__file__).with_name("programs.py")
)
programs_module = importlib.util.module_from_spec(programs_spec)
programs_spec.loader.exec_module(programs_module)
KINDS = {"status": Status, "want": Want, "begin": Begin, "state": State}


class FakeAggregator:
    """An aggregator whose messages the test sends, for one device."""

    def __init__(self, federation, client_id):
        self.topics = federation.topics
        self.client_id = client_id
        self.session = secrets.token_hex(8)
        self.started = time.time_ns() // 10**6
        self.link = Link(federation.url, f"lead-{self.session}")
        device = self.topics.format_device
        self.link.subscribe(
            device(client_id, "status"),
            device(client_id, "want"),
            f"{self.topics.root}/device/{client_id}/up/+/+",
        )
        self.blobs = {}
        self.plan = self.offer_blob(encode_plan(federation.plan))
        self.model = self.offer_blob(encode_weights(_shared.processes.make_toy_weights()))
        self.send_state("joining", 0)

    def offer_blob(self, content):
        sha256 = hashlib.sha256(content).hexdigest()
        self.blobs[sha256] = content
        self.publish_manifest(content, sha256)
        return sha256

    def publish_manifest(self, content, sha256, *, retained=False):
        manifest = Manifest(
            sha256=sha256,
            size=len(content),
            count=count_chunks(len(content)),
            chunk_bytes=CHUNK_BYTES,
            ts=time.time(),
            retained=retained,
        )
        self.link.publish(self.topics.format_manifest(sha256), encode_json(manifest), retain=True)

    def retain_blob(self, content):
        """Publish a blob as retained messages, its manifest last. Requests for it are not answered."""
        sha256 = hashlib.sha256(content).hexdigest()
        for index in range(count_chunks(len(content))):
            self.link.publish(
                self.topics.format_blob(sha256, index), slice_chunk(content, index), retain=True
            )
        self.publish_manifest(content, sha256, retained=True)
        return sha256

    def send_state(self, phase, round):
        state = State(
            federation=self.topics.federation,
            session=self.session,
            phase=phase,
            round=round,
            rounds=3,
            cohort_size=1,
            deadline_s=30.0,
            plan=self.plan,
            ts=time.time(),
            started=self.started,
        )
        self.link.publish(self.topics.state, encode_json(state), retain=True)

    def send_task(self, round, phase="federate", nonce="n1", **changes):
        models = (
            {"global": self.model, "initial": self.model}
            if phase == "personalize"
            else {"global": self.model}
        )
        raw = {
            "plan": self.plan,
            "models": models,
            "scalars": {},
            "seed": 1,
            "deadline_s": 30.0,
            "codec": "fp32",
            "nonce": nonce,
        }
        raw |= {"max_staleness": 0, "budget_s": 0.0, "started": self.started}
        task = Task(session=self.session, round=round, phase=phase, ts=time.time(), **(raw | changes))
        self.link.publish(self.topics.format_device(self.client_id, "task"), encode_json(task))

    def serve(self, want, lose=()):
        blob = self.blobs[want.sha256]
        for low, high in want.missing or ((0, count_chunks(len(blob))),):
            for index in range(low, high):
                if index not in lose:
                    self.link.publish(self.topics.format_blob(want.sha256, index), slice_chunk(blob, index))

    def send_receipt(self, begin, outcome, missing=(), reason=""):
        receipt = Receipt(
            round=begin.round,
            sha256=begin.sha256,
            outcome=outcome,
            missing=missing,
            reason=reason,
            nonce=begin.nonce,
            ts=time.time(),
        )
        self.link.publish(self.topics.format_device(self.client_id, "receipt"), encode_json(receipt))

    def next(self, *kinds, serve=True):
        """Return the next message of these kinds and serve blobs that the device requests meanwhile. A chunk
        is returned as (index, bytes).
        """
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            event = self.link.get(deadline - time.monotonic())
            if not isinstance(event, Message):
                continue
            address = parse_topic(event.topic)
            message = (
                decode_json(KINDS[address.kind], event.payload)
                if address.kind in KINDS
                else (address.index, event.payload)
            )
            if address.kind == "want" and serve and "want" not in kinds:
                self.serve(message)
            if address.kind in kinds:
                return message
        raise AssertionError(f"none of {kinds} came")

    def accept_update(self, begin):
        """Request an announced update, acknowledge it and return its bytes."""
        self.send_receipt(begin, "missing", ((0, begin.count),))
        parts = dict(self.next("chunk") for _ in range(begin.count))
        self.send_receipt(begin, "ok")
        return b"".join(parts[index] for index in sorted(parts))


@pytest.fixture
def fake_aggregator():
    made = []

    def make(federation, client_id="pi-1"):
        made.append(FakeAggregator(federation, client_id))
        return made[-1]

    yield make
    for aggregator in made:
        aggregator.link.close()


def load_progress(federation, client_id="pi-1"):
    """Return the figures of a device's last round, and the name of its file, which has its digest."""
    directory = federation.directory / f"state-{client_id}"
    names = [path.name for path in directory.glob("round-[0-9]*")]
    return {**asdict(read_last_round(directory)), "names": sorted(names)}


@pytest.fixture
def program():
    """Returns the function that makes TFLite programs without TensorFlow, see `programs`."""
    return programs_module.make_program


@pytest.fixture
def read_progress():
    return load_progress
