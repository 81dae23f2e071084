"""A device written from docs/protocol.md alone. It imports nothing of edgefl and makes messages from the
tables of that page.

It does not train: its deltas are small numbers. The aggregator must accept its messages, and it must
understand those of the aggregator.
"""

import base64
import contextlib
import hashlib
import json
import math
import queue
import re
import secrets
import struct
import time
import zlib
from pathlib import Path

import paho.mqtt.client as paho
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
DEADLINE_S = 60.0


def read_tables():
    """Return the fields of each message in the tables of the page: {"Task": {"session": "text", ...},
    ...}.
    """
    found = {}
    heading = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        row = re.fullmatch(
            r"\| (\w+) \| (text|integer|number|boolean|ranges|(?:list|map|rows) [^|]+) \|.*\|", line
        )
        if row and heading[0].isupper() and " " not in heading:
            found.setdefault(heading, {})[row[1]] = row[2]
    return found


TABLES = read_tables()


def format_value(value, kind, between=","):
    """Return a value in the form in which it is signed."""
    if kind == "number":
        return "null" if value is None or not math.isfinite(value) else repr(float(value))
    if kind.startswith("map"):
        return (
            "{"
            + between.join(f"{json.dumps(key)}:{format_value(item, kind[7:])}" for key, item in value.items())
            + "}"
        )
    return json.dumps(value, separators=(between, ":"))


def signed_bytes(kind, message, federation, client_id):
    unsigned = {**message, "signature": ""}
    body = ",".join(
        f'"{name}":{format_value(unsigned[name], kind_of_field)}'
        for name, kind_of_field in TABLES[kind].items()
    )
    return f"edgefl/v2 {federation} {kind} {client_id}\n{{{body}}}".encode()


def safetensors(blob):
    """Return {name: (dtype, shape, bytes)}."""
    (size,) = struct.unpack_from("<Q", blob)
    header = json.loads(blob[8 : 8 + size])
    data = blob[8 + size :]
    return {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def encode_safetensors(tensors):
    header = {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def int8_of(values):
    """Return (scale, bytes) of the int8 encoding of the page."""
    largest = max(map(abs, values)) / 127
    mantissa, exponent = math.frexp(largest)
    scale = math.ldexp(math.ceil(mantissa * 65536), exponent - 16) if largest >= 2.0**-126 else 0.0
    return scale, struct.pack(f"{len(values)}b", *(round(x / scale) if scale else 0 for x in values))


def deflated(blob, itemsize):
    whole = len(blob) // itemsize * itemsize
    planes = b"".join(blob[i:whole:itemsize] for i in range(itemsize))
    return zlib.compress(planes + blob[whole:])


class SupersededError(Exception):
    """A later task arrived, so the blobs of this one may be deleted."""


class ForeignDevice:
    """One device. `enrolment`: the fields of its file, or None. `verified_kinds`: the kinds of the
    verified messages.
    """

    def __init__(self, port, federation, client_id, enrolment=None, context=None):
        self.federation = federation
        self.client_id = client_id
        self.enrolment = enrolment
        self.root = f"edgefl/v2/{federation}"
        self.boot_id = secrets.token_hex(8)
        self.born = time.time()
        self.events = queue.Queue()
        self.waiting = []
        self.verified_kinds = []
        self.stored = {}
        self.blobs = {}
        self.nonce = ""
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=f"edgefl-{client_id}-{self.boot_id}"
        )
        self.client.on_message = lambda client, data, message: self.events.put(
            (message.topic, message.payload)
        )
        self.client.on_subscribe = lambda *rest: self.events.put(("subscribed", b""))
        self.client.on_connect = lambda *rest: self.events.put(("connected", b""))
        self.client.will_set(f"{self.root}/device/{client_id}/status", self.status(False), qos=1, retain=True)
        if context:
            self.client.tls_set_context(context)
        self.client.connect("localhost", port, 20)
        self.client.loop_start()
        self.next(lambda topic: topic == "connected")

    def status(self, online):
        status = {
            "client_id": self.client_id,
            "boot_id": self.boot_id,
            "online": online,
            "born": self.born,
            "num_samples": 7,
            "version": "foreign",
            "ts": time.time(),
            "paused": "",
            "draining": False,
        }
        return json.dumps(status)

    def next(self, predicate):
        """Return the first event whose topic satisfies the predicate. Other events wait."""
        deadline = time.monotonic() + DEADLINE_S
        for event in self.waiting:
            if predicate(event[0]):
                self.waiting.remove(event)
                return event
        while True:
            event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            if predicate(event[0]):
                return event
            self.waiting.append(event)

    def publish(self, leaf, payload, retain=False):
        self.client.publish(f"{self.root}/device/{self.client_id}/{leaf}", payload, qos=1, retain=retain)

    def read(self, kind, payload):
        """Return a message after a check of its fields against the page and, with an enrolment, of the
        aggregator's signature.
        """
        message = json.loads(payload)
        assert set(message) == set(TABLES[kind])
        if self.enrolment:
            key = Ed25519PublicKey.from_public_bytes(base64.b64decode(self.enrolment["aggregator_key"]))
            to = "" if kind == "State" else self.client_id
            key.verify(
                base64.b64decode(message["signature"]), signed_bytes(kind, message, self.federation, to)
            )
        self.verified_kinds.append(kind)
        return message

    def sign(self, kind, message):
        """Return the encoded message with its signature. The signature covers the exact bytes of the
        text, with its spaces and its form of numbers. Key messages are signed in the form of the page.
        """
        text = json.dumps({**message, "signature": ""}, indent=1).replace('"signature": "', '"signature":"')
        if not self.enrolment:
            return text
        key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(self.enrolment["signing_key"]))
        signed_text = f"edgefl/v2 {self.federation} {kind} {self.client_id}\n{text}".encode()
        if kind in ("Advertised", "Agreed"):
            signed_text = signed_bytes(kind, message, self.federation, self.client_id)
        signature = base64.b64encode(key.sign(signed_text)).decode()
        before, field, after = text.rpartition('"signature":"')
        return before + field + signature + after

    def fetch(self, sha256):
        """Return a blob.

        Raises:
            SupersededError: another task arrived meanwhile, which `next` returns afterwards.
        """
        if sha256 in self.blobs:
            return self.blobs[sha256]
        self.client.subscribe(f"{self.root}/blob/{sha256}/+", 1)
        manifest = None
        chunks = {}
        while manifest is None or len(chunks) < manifest["count"]:
            topic, payload = self.next(lambda topic: f"/blob/{sha256}/" in topic or topic.endswith("/task"))
            if topic.endswith("/task"):
                if json.loads(payload)["nonce"] != self.nonce:
                    self.waiting.insert(0, (topic, payload))
                    raise SupersededError
            elif not payload:
                manifest = None  # Deleted by the server, so another task follows
                chunks = {}
            elif topic.endswith("/manifest"):
                manifest = json.loads(payload)
                assert set(manifest) == set(TABLES["Manifest"])
                if not manifest["retained"]:
                    self.publish("want", json.dumps({"sha256": sha256, "missing": [], "ts": time.time()}))
            else:
                chunks[int(topic.rsplit("/")[-1])] = payload
        blob = b"".join(chunks[i] for i in range(manifest["count"]))
        assert len(blob) == manifest["size"]
        assert hashlib.sha256(blob).hexdigest() == sha256
        self.blobs[sha256] = blob
        return blob

    def update(self, task):
        """Return the bytes of an invented update, in int8+deflate."""
        assert task["codec"] == "int8+deflate"
        tensors = {}
        if task["phase"] != "personalize":
            for name, (dtype, shape, content) in safetensors(self.fetch(task["models"]["global"])).items():
                assert dtype == "F32"
                scale, packed = int8_of([1e-3 * math.sin(i + 1) for i in range(len(content) // 4)])
                tensors[f"global/{name}"] = ("I8", shape, packed)
                tensors[f"global/{name}#scale"] = ("F32", [1], struct.pack("<f", scale))
        return deflated(encode_safetensors(tensors), 1)

    def answer(self, task):
        """Answer a task."""
        plan = safetensors(self.fetch(task["plan"]))
        assert json.loads(plan["spec"][2])["format"] == 2
        key = task["session"], task["round"], task["phase"]
        metrics = {"accuracy_mixture": 0.5} if task["phase"] == "personalize" else {"loss": 0.25, "n": None}
        self.deliver(task, self.stored.setdefault(key, self.update(task)), metrics)

    def deliver(self, task, blob, metrics):
        """Send an answer until its receipt says ok."""
        sha256 = hashlib.sha256(blob).hexdigest()
        step = task["chunk_bytes"]
        begin = {
            "client_id": self.client_id,
            "session": task["session"],
            "round": task["round"],
            "plan": task["plan"],
            "sha256": sha256,
            "size": len(blob),
            "count": max(1, -(-len(blob) // step)),
            "chunk_bytes": step,
            "num_samples": 7,
            "metrics": metrics,
            "nonce": task["nonce"],
            "ts": time.time(),
            "follows": False,
        }
        self.publish(f"up/{sha256}/begin", self.sign("Begin", begin))
        while True:
            _, payload = self.next(lambda topic: topic.endswith("/receipt"))
            receipt = self.read("Receipt", payload)
            if receipt["sha256"] != sha256 or receipt["nonce"] not in ("", task["nonce"]):
                continue
            # Enough other clients answered before
            late = receipt["outcome"] == "rejected" and task["phase"] in ("agree", "unmask")
            if receipt["outcome"] == "ok" or late:
                return
            assert receipt["outcome"] in ("wait", "missing"), receipt["reason"]
            for low, high in receipt["missing"]:
                for i in range(low, high):
                    self.publish(f"up/{sha256}/{i}", blob[i * step : (i + 1) * step])
            if receipt["outcome"] == "missing":
                self.publish(
                    f"up/{sha256}/end",
                    json.dumps({"sha256": sha256, "count": begin["count"], "ts": time.time()}),
                )

    def run(self):
        """Take part until the federation is done."""
        own = f"{self.root}/device/{self.client_id}"
        self.client.subscribe(
            [(f"{own}/claim", 1), (f"{own}/task", 1), (f"{own}/receipt", 1), (f"{self.root}/state", 1)]
        )
        self.next(lambda topic: topic == "subscribed")
        self.publish("status", self.status(True), retain=True)
        last_session = ""
        while True:
            topic, payload = self.next(lambda topic: topic.endswith(("/state", "/task")))
            if topic.endswith("/task"):
                task = self.read("Task", payload)
                self.nonce = task["nonce"]
                with contextlib.suppress(SupersededError):
                    self.answer(task)
                last_session = task["session"]
            elif payload:
                state = self.read("State", payload)
                if state["phase"] == "done" and state["session"] == last_session:
                    return

    def close(self):
        self.publish("status", self.status(False), retain=True)
        self.client.disconnect()
        self.client.loop_stop()
