"""Every parser of foreign bytes: damaged inputs raise only errors of edgefl and stay within a memory limit.

`make test-fuzz` runs a million inputs. EDGEFL_FUZZ_SCALE is the share of them to run, by default a tenth.
"""

import base64
import contextlib
import io
import json
import math
import os
import tracemalloc
import wave
from collections.abc import Callable
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from devices.readings import SensorTopics, WindowCutter, parse_label, parse_reading
from edgefl.base.codecs import CODECS
from edgefl.base.config import parse_config
from edgefl.base.errors import EdgeflError
from edgefl.base.types import ClientState, Mixture, ServerState, Shard
from edgefl.base.verdict import judge_federation
from edgefl.data.datasets.idx import read_idx
from edgefl.data.npz import load_shard, save_shard
from edgefl.data.sources import make_source, read_source
from edgefl.data.sources.classes import read_class_list
from edgefl.data.sources.ring import Ring, load_ring
from edgefl.data.sources.sample_files import read_sample
from edgefl.learning.algorithms.papers.apfl import PersonalShare
from edgefl.learning.algorithms.server_optimizer import OptimizerSlots
from edgefl.learning.checkpoint import (
    decode_client_state,
    decode_server_state,
    decode_stored_mixture,
    encode_client_state,
    encode_mixture,
    encode_server_state,
)
from edgefl.program.plan.spec import Plan, PlanSpec, TensorSpec, decode_plan, encode_plan, serialize_spec
from edgefl.protocol.security.certificates import check_voucher, make_authority, sign_voucher
from edgefl.protocol.security.enrolled_devices import load_enrolled_devices as read_devices
from edgefl.protocol.security.enrolment import ENROLMENT_FORMAT, Enrolment, load_enrolment
from edgefl.protocol.security.secagg.secure_sum import PublicKeys
from edgefl.protocol.security.signing import check_signature, derive_public_key, encode_signed
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.server.events import OpenedRound, StoreUpdate
from edgefl.protocol.server.plausibility import mark_left_out
from edgefl.protocol.server.secagg.masked_sum import MaskedSum, decode_masked_sum, encode_masked_sum
from edgefl.protocol.wire import messages
from edgefl.protocol.wire.chunks import Assembler, to_indices
from edgefl.protocol.wire.deflate import deflate_blob
from edgefl.protocol.wire.masked import (
    DIGESTS_BYTES,
    SEALED_BYTES,
    Advertised,
    Agreed,
    Introduced,
    decode_agreed,
    decode_complaint,
    decode_ids,
    decode_inbox,
    decode_keys,
    encode_agreed,
    encode_inbox,
    encode_keys,
    encode_lists,
)
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.protocol.wire.tensors import decode_models, decode_subset, encode_models, encode_weights
from edgefl.protocol.wire.topics import TOPIC_PREFIX, parse_topic
from edgefl.protocol.wire.url import parse_urls
from edgefl.protocol.wire.verdict_message import make_verdict_message
from edgefl.watch.monitor.message_lines import decode_message
from edgefl.watch.monitor.view import FederationView, snapshot
from firmware_export.certificate.certificate import read_certificate
from firmware_export.certificate.golden import GoldenVectors, decode_golden, encode_golden
from firmware_export.codegen.c_source import generate_c
from firmware_export.ota.drift import read_counters
from firmware_export.ota.update_package import FirmwarePart, FirmwareParts, make_update, read_update
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.quantized_model import read_quantized_model
from mqtt_broker.aggregator.journal import FederationStart, Journal
from tests.firmware_export.graphs import Op, T, make_tflite
from tests.fuzz.mutations import (
    BYTES,
    Make,
    Rng,
    damage_bytes,
    damage_json,
    damage_lines,
    damage_safetensors,
    damage_tree,
    damage_zip,
    flip_bytes,
    pick,
)

SCALE = float(os.environ.get("EDGEFL_FUZZ_SCALE", "0.1"))
TOTAL = 1_000_000
MIN_INPUTS = 10_000
MEMORY_LIMIT_BYTES = 2_000_000
SHA = "ab" * 32


@dataclass(frozen=True)
class Parser:
    """A parser and its inputs.

    Attributes:
        name: shown in messages.
        read: raises EdgeflError for input that it refuses.
        make: draws an input.
        inputs: number of inputs of the full run.
        memory: the most bytes that `read` may use.
        refuses: False for a reader that shows unreadable input instead of refusing it.
    """

    name: str
    read: Callable[[bytes], object]
    make: Make
    inputs: int = MIN_INPUTS
    memory: int = MEMORY_LIMIT_BYTES
    refuses: bool = True


WEIGHTS = {"fc/kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "fc/bias": np.ones(4, np.float32)}
SPECS = tuple(TensorSpec(name, array.shape) for name, array in WEIGHTS.items())
MODELS = {"global": SPECS}
SEEDS = [
    messages.State(
        federation="f",
        session="s",
        phase="federate",
        round=1,
        rounds=3,
        cohort_size=2,
        deadline_s=9.0,
        plan=SHA,
        ts=1.0,
        started=17 * 10**11,
        settings={"a": 1.0},
    ),
    messages.Status(
        client_id="pi-1", boot_id="b", online=True, born=1.0, num_samples=5, version="0.1.0", ts=1.0
    ),
    messages.Task(
        session="s",
        round=1,
        phase="federate",
        plan=SHA,
        models={"global": SHA},
        scalars={"a": 1.0},
        seed=1,
        deadline_s=9.0,
        codec="fp32",
        max_staleness=1,
        budget_s=2.5,
        nonce="n",
        ts=1.0,
        started=1700000000000,
        settings={"b": 1.0},
    ),
    messages.Manifest(sha256=SHA, size=10, count=1, chunk_bytes=65536, ts=1.0),
    messages.Begin(
        client_id="pi-1",
        session="s",
        round=1,
        plan=SHA,
        sha256=SHA,
        size=10,
        count=1,
        chunk_bytes=65536,
        num_samples=5,
        metrics={"loss": 0.5},
        nonce="n",
        ts=1.0,
    ),
    messages.End(SHA, 1, 1.0),
    messages.Receipt(round=1, sha256=SHA, outcome="missing", missing=((0, 1),), reason="", nonce="n", ts=1.0),
    messages.Want(SHA, ((0, 1), (2, 3)), 1.0),
    messages.Claim("b", 1.0),
    messages.Metrics(
        client_id="pi-1",
        round=1,
        values={"loss": 0.5},
        rss_mb=50.0,
        peak_rss_mb=60.0,
        temperature_c=45.5,
        seconds=1.5,
        ts=1.0,
    ),
    messages.Anomaly(client_id="pi-1", score=0.5, threshold=0.25, alarm=True, windows=100, alarms=3, ts=1.0),
    messages.Summary(
        round=1,
        phase="federate",
        updates=2,
        loss=0.5,
        accuracy_mean=0.9,
        accuracy_p10=0.8,
        accuracy_p90=1.0,
        bytes_up=100,
        bytes_down=200,
        seconds=3.5,
        dropped=("pi-2",),
        ts=1.0,
        metrics={"auc": 0.5},
    ),
    messages.Clusters(
        session="s",
        round=1,
        assignment={"pi-1": 0},
        layer="fc1",
        clients=("pi-1", "pi-2"),
        matrix=((1.0, 0.5), (0.5, 1.0)),
        linkage=((0, 1, 0.5, 2),),
        cut=0.6,
        ts=1.0,
    ),
    make_verdict_message(
        judge_federation([{"id": "pi-1", "accuracy_local": 0.5, "accuracy_shipped": 0.75, "shipped": 3.0}]),
        "s",
        1.0,
        with_rows=True,
    ),
]
KEY = base64.b64encode(bytes(range(32))).decode()
TRUST = Trust(federation="f", key=KEY, find_key=lambda client_id: derive_public_key(KEY))
TOPIC_OF = {
    "State": "state",
    "Status": "device/pi-1/status",
    "Task": "device/pi-1/task",
    "Manifest": f"blob/{SHA}/manifest",
    "Begin": f"device/pi-1/up/{SHA}/begin",
    "End": f"device/pi-1/up/{SHA}/end",
    "Receipt": "device/pi-1/receipt",
    "Want": "device/pi-1/want",
    "Claim": "device/pi-1/claim",
    "Metrics": "device/pi-1/metrics",
    "Anomaly": "device/pi-1/anomaly",
    "Summary": "round/1/summary",
    "Clusters": "clusters",
    "Verdict": "verdict",
}


def make_message_parsers() -> list[Parser]:
    """Return parsers of each message: as JSON, signed again after damage, and as a monitor reads it."""
    parsers = []
    for seed in SEEDS:
        kind = type(seed)
        text = encode_json(seed)
        parsers.append(
            Parser(
                name=f"json {kind.__name__}",
                read=lambda blob, kind=kind: decode_json(kind, blob),
                make=damage_json(text),
                inputs=30_000,
            )
        )
        if hasattr(seed, "signature"):
            parsers.append(
                Parser(
                    name=f"signed {kind.__name__}",
                    read=lambda blob, kind=kind: read_signed(kind, blob),
                    make=damage_signed(seed),
                    inputs=15_000,
                )
            )

    def make_topic_and_payload(rng: Rng) -> bytes:
        seed = pick(rng, SEEDS)
        return TOPIC_OF[type(seed).__name__].encode() + b"\n" + damage_json(encode_json(seed))(rng)

    return [
        *parsers,
        Parser(
            name="monitor",
            read=render_message,
            make=make_topic_and_payload,
            inputs=15_000,
            memory=8_000_000,
            refuses=False,
        ),
    ]


def read_signed(kind: type, blob: bytes) -> object:
    return TRUST.check(decode_json(kind, blob), blob, "pi-1")


def damage_signed(seed: object) -> Make:
    """Damage the tree, and sign it if it is still a message of that kind. Otherwise damage signed text."""
    tree = json.loads(encode_json(seed))

    def make(rng: Rng) -> bytes:
        with contextlib.suppress(EdgeflError):
            message = decode_json(
                type(seed), json.dumps({**damage_tree(tree, rng), "signature": ""}).encode()
            )
            return encode_signed(message, KEY, "f", "pi-1")
        return damage_bytes(encode_signed(seed, KEY, "f", "pi-1"), rng)

    return make


def render_message(blob: bytes) -> object:
    topic, _, payload = blob.partition(b"\n")
    whole = f"{TOPIC_PREFIX}/f/{topic.decode(errors='replace')}"
    view = FederationView("f")
    view.take(whole, payload, 1.0)
    return json.dumps([decode_message(whole, payload), snapshot(view, 2.0)], allow_nan=False)


def make_tensor_parsers() -> list[Parser]:
    """Return parsers of updates in each codec, of models, and of blobs in chunks."""
    parsers = []
    for kind in CODECS:
        codec = kind.examples[0]
        blob = encode_models({"global": WEIGHTS}, codec)
        damaged = damage_safetensors(blob)
        parsers.append(
            Parser(
                name=f"update {codec}",
                read=lambda blob, codec=codec: decode_models(blob, MODELS, "pi-1", codec),
                make=damaged,
                inputs=20_000,
            )
        )
        parsers.append(
            Parser(
                name=f"update {codec}+deflate",
                read=lambda blob, codec=codec: decode_models(blob, MODELS, "pi-1", f"{codec}+deflate"),
                make=lambda rng, damaged=damaged, size=kind.item_bytes: (
                    damage_bytes(deflate_blob(damaged(rng), size), rng)
                    if rng.random() < 0.2
                    else deflate_blob(damaged(rng), size)
                ),
                inputs=15_000,
            )
        )
    model = damage_safetensors(encode_weights(WEIGHTS))
    parsers.append(
        Parser(
            name="model",
            read=lambda blob: decode_subset(blob, SPECS, "the aggregator"),
            make=model,
            inputs=20_000,
        )
    )
    parsers.append(Parser(name="chunks", read=assemble, make=draw_chunks, inputs=20_000, memory=8_000_000))
    return parsers


def draw_chunks(rng: Rng) -> bytes:
    """Return a manifest's numbers, ranges and chunks as JSON. Two of three draws change one number."""
    numbers = [0, 1, 2, 1023, 1024, 4096, 245_760, 245_761, 10**6, 2**31, 2**62, -1]
    size = int(pick(rng, [0, 1, 1024, 3000, 4999]))
    chunk = int(pick(rng, [1024, 4096, 245_760]))
    count = max(1, -(-size // chunk))
    drawn = [
        size,
        count,
        chunk,
        [[0, count]],
        [[index, min(chunk, size - index * chunk)] for index in range(count)],
    ]
    if rng.random() < 0.67:
        position = int(rng.integers(0, 5))
        number = int(pick(rng, numbers))
        drawn[position] = number if position < 3 else [[number, int(pick(rng, numbers)) % 10**6]]
    return json.dumps(drawn).encode()


def assemble(blob: bytes) -> None:
    try:
        size, count, chunk, ranges, chunks = json.loads(blob)
    except (ValueError, TypeError, RecursionError):  # the input is not from `draw_chunks`
        return
    content = b"\0" * min(max(size, 0), 5000)
    assembler = Assembler(
        sha256(content).hexdigest(), size=size, count=count, chunk_bytes=chunk, limit=1_000_000
    )
    for index, length in chunks:
        assembler.add(index, b"\0" * length)
    to_indices(tuple(map(tuple, ranges)), count)
    assembler.list_missing()
    if assembler.is_complete():
        assembler.assemble()


def make_masked_parsers() -> list[Parser]:
    """Return parsers of the messages of secure aggregation, with valid signatures and vouchers."""
    authority = make_authority("a", 10)
    key = base64.b64encode(bytes(32)).decode()
    seed = Advertised(client_id="pi-1", context="ab" * 32, seal=key, mask=key, seed=key)
    others = [
        Introduced(Advertised(client_id=f"pi-{i}", context="ab" * 32, seal=key, mask=key, seed=key), KEY, "")
        for i in range(1, 5)
    ]
    tree = json.loads(encode_json(seed))
    voucher = sign_voucher(authority, "pi-1", derive_public_key(KEY), 4e9)

    def read_keys(blob: bytes) -> None:
        for each in decode_keys(blob):
            check_signature(
                each.advertised,
                encode_json(each.advertised),
                each.signing_key,
                "f",
                each.advertised.client_id,
            )
            check_voucher(authority.certificate, each.advertised.client_id, each.signing_key, each.voucher)

    def make_keys(rng: Rng) -> bytes:
        with contextlib.suppress(EdgeflError):
            damaged = decode_json(
                Advertised, json.dumps({**damage_tree(tree, rng), "signature": ""}).encode()
            )
            signed = decode_json(Advertised, encode_signed(damaged, KEY, "f", damaged.client_id))
            return damage_lines(encode_keys([Introduced(signed, derive_public_key(KEY), voucher)]), b"\t")(
                rng
            )
        return damage_lines(encode_keys(others))(rng)

    inbox = encode_inbox({f"pi-{i}": bytes(SEALED_BYTES) for i in range(1, 5)})
    ids = b"pi-1 pi-2 pi-3"
    lists = encode_lists(("pi-1", "pi-2", "pi-3"), ("pi-1", "pi-2"))
    digest = "cd" * 32
    agreement = json.loads(encode_json(Agreed(client_id="pi-1", binding="ab" * 32, lists=digest)))

    def read_agreed(blob: bytes) -> None:
        for each in decode_agreed(blob)[1]:
            check_signature(each, encode_json(each), derive_public_key(KEY), "f", each.client_id)

    def make_agreed(rng: Rng) -> bytes:
        with contextlib.suppress(EdgeflError):
            damaged = decode_json(
                Agreed, json.dumps({**damage_tree(agreement, rng), "signature": ""}).encode()
            )
            signed = decode_json(Agreed, encode_signed(damaged, KEY, "f", damaged.client_id))
            return damage_lines(encode_agreed(lists, [signed]), b"\n")(rng)
        return damage_lines(
            encode_agreed(
                lists, [Agreed(client_id=f"pi-{i}", binding="ab" * 32, lists=digest) for i in range(1, 5)]
            ),
            b"\n",
        )(rng)

    return [
        Parser(name="masked agreement", read=read_agreed, make=make_agreed, inputs=MIN_INPUTS),
        Parser(name="masked keys", read=read_keys, make=make_keys, inputs=MIN_INPUTS),
        Parser(name="masked inbox", read=decode_inbox, make=damage_list(inbox, b"\n"), inputs=20_000),
        Parser(name="masked complaint", read=decode_complaint, make=damage_list(ids, b" "), inputs=20_000),
        Parser(name="masked ids", read=decode_ids, make=damage_list(ids, b" "), inputs=20_000),
    ]


def damage_list(blob: bytes, separator: bytes) -> Make:
    """Damage parts or bytes."""
    damaged = damage_lines(blob, separator)
    return lambda rng: damaged(rng) if rng.random() < 0.5 else damage_bytes(blob, rng)


def make_text_parsers() -> list[Parser]:
    """Return parsers of topics, URLs, sensor messages and the configuration."""
    topic = f"{TOPIC_PREFIX}/f/device/pi-1/up/{SHA}/0".encode()
    url = b"mqtts://user:word@host:8883,mqtts://b?protocol=5"
    config = b"""[federation]
name = "f"
rounds = 3
clients_per_round = 2
codec = "int8"
mode = "sync"
[model]
name = "lenet5"
input_shape = [28, 28, 1]
num_classes = 10
[algorithm]
name = "clustered"
epochs = 1
[broker]
url = "mqtt://localhost:1883"
[privacy]
clip = 1.0
noise_multiplier = 1.0
population = 10
"""
    reading = b'{"x": 0.5, "y": [1, 2], "z": "3", "t": 1e3}'
    return [
        Parser(
            name="topic",
            read=lambda blob: parse_topic(blob.decode("latin-1")),
            make=lambda rng: damage_bytes(topic, rng),
            inputs=30_000,
        ),
        Parser(
            name="url",
            read=lambda blob: parse_urls(blob.decode("latin-1")),
            make=lambda rng: damage_bytes(url, rng),
            inputs=30_000,
        ),
        Parser(
            name="config",
            read=lambda blob: parse_config(blob.decode("latin-1")),
            make=damage_config(config),
            inputs=20_000,
            memory=8_000_000,
        ),
        Parser(
            name="reading",
            read=lambda blob: parse_reading(blob, ()),
            make=damage_json(reading),
            inputs=30_000,
        ),
        Parser(
            name="label",
            read=lambda blob: parse_label(blob, ()),
            make=lambda rng: damage_bytes(b'"12"', rng),
            inputs=20_000,
        ),
        Parser(
            name="window",
            read=take_readings,
            make=damage_lines(b"\n".join([b"7", b"[1, 2.5]", b"[2, 3]"] * 3)),
            inputs=20_000,
        ),
    ]


def damage_config(text: bytes) -> Make:
    """Swap values between keys, swap lines, or damage bytes."""
    lines = text.split(b"\n")
    values = [line.split(b"= ")[1] for line in lines if b"= " in line]
    values += [b"-1", b"0", b"1e999", b"nan", b"[]", b"{}", b"true", b"''", b"9" * 30]

    def make(rng: Rng) -> bytes:
        made = list(lines)
        for _ in range(int(rng.integers(1, 4))):
            index = int(rng.integers(0, len(made)))
            if b"= " in made[index]:
                made[index] = made[index].split(b"= ")[0] + b"= " + pick(rng, values)
        return damage_lines(b"\n".join(made))(rng) if rng.random() < 0.5 else b"\n".join(made)

    return make


def take_readings(blob: bytes) -> None:
    cutter = WindowCutter(topics=SensorTopics("a/+", "l/+"), window=2, step=1, on_window=lambda window: None)
    for number, line in enumerate(blob.split(b"\n")):
        cutter.take("l/s" if number % 3 == 0 else "a/s", line)


def make_file_parsers(folder: Path) -> list[Parser]:
    """Return parsers of state, keys, data and exports in files."""
    state = encode_server_state(
        mark_left_out(
            ServerState(round=1, phase="federate", models={"global": WEIGHTS}), ["a"], 1
        ).with_record(OptimizerSlots({"global": WEIGHTS}))
    )
    lists: dict[str, list[object]] = {key: [] for key in ("data", "trained", "frozen", "slots", "noise")}
    signature = {"name": "train", "kind": "train", "batch_size": 2, **lists, "hyper": {}, "out": None}
    spec = json.loads(
        serialize_spec(
            PlanSpec(
                model="softmax",
                algorithm="fedavg",
                options={"epochs": 1},
                input_shape=(4,),
                num_classes=3,
                weights=SPECS,
                signatures=(),
                bindings=(),
                model_options={},
            )
        )
    )
    plan = encode_plan(
        Plan(
            spec=PlanSpec(
                model="softmax",
                algorithm="fedavg",
                options={},
                input_shape=(4,),
                num_classes=3,
                weights=SPECS,
                signatures=(),
                bindings=(),
                model_options={},
            ),
            program=b"p" * 64,
            template=b"t" * 64,
        )
    )
    spec["signatures"] = [signature]
    spec["bindings"] = [{"weight": "fc/bias", "tensor": 1, "permutation": [0], "shape": [4], "derived": ""}]
    damaged_spec = damage_json(json.dumps(spec).encode())

    def make_plan(rng: Rng) -> bytes:
        from safetensors.numpy import save

        if rng.random() < 0.3:
            return damage_safetensors(plan)(rng)
        parts = {"spec": damaged_spec(rng), "program": b"p", "template": b"t"}
        return bytes(save({name: np.frombuffer(part or b" ", np.uint8) for name, part in parts.items()}))

    def make_file_reader(
        name: str, read: Callable[[Path], object], mode: int = 0o600
    ) -> Callable[[bytes], object]:
        """Return a function that writes the bytes to a file and reads it."""
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)

        def read_file(blob: bytes) -> object:
            path.write_bytes(blob)
            path.chmod(mode)
            return read(path)

        return read_file

    def read_written(write: Callable[[Path], object], name: str = "made") -> bytes:
        write(folder / name)
        return (folder / name).read_bytes()

    x = np.linspace(0, 1, 24, dtype=np.float32).reshape(6, 4)
    shard = read_written(
        lambda path: save_shard(
            path, Shard(x_train=x, y_train=np.arange(6) % 3, x_test=x, y_test=np.arange(6) % 3, num_classes=3)
        ),
        "made.npz",
    )
    ring = Ring(4, 2, ("a", "b"))
    for label in range(3):
        ring.add(np.ones((2, 2), np.float32), label, 0, label)
    saved_ring = read_written(ring.save, "ring.npz")
    journal = read_written(fill_journal, "journal.sqlite")
    public = {
        client_id: PublicKeys(bytes(32), bytes(32), bytes(32)) for client_id in ("pi-1", "pi-2", "pi-3")
    }
    masked_sum = MaskedSum(
        session="s",
        round=1,
        attempt="a",
        binding="c",
        public=public,
        shared=tuple(public),
        begins=(SEEDS[4],),
        total=np.arange(4, dtype=np.uint64),
        digests={"pi-1": bytes(3 * DIGESTS_BYTES)},
    )
    line, _, vector_bytes = encode_masked_sum(masked_sum).partition(b"\n")
    damaged_line = damage_json(line)
    enrolment = {
        "format": ENROLMENT_FORMAT,
        **dict.fromkeys((field.name for field in fields(Enrolment)), "x"),
    }
    register = {"pi-1": {"serial": "1", "signing_key": KEY, "revoked": False, "voucher": "x"}}
    csv = b"a,b,label\n" + b"".join(b"%d,%d.5,%d\n" % (i, i, i % 2) for i in range(6))
    plain = {
        name: Parser(name=f"file {name}", read=read, make=make, inputs=MIN_INPUTS, memory=8_000_000)
        for name, read, make in (
            ("server state", decode_server_state, damage_safetensors(state)),
            (
                "client state",
                decode_client_state,
                damage_safetensors(
                    encode_client_state(ClientState(WEIGHTS).with_record(PersonalShare(alpha=1.0)))
                ),
            ),
            ("mixture", decode_stored_mixture, damage_safetensors(encode_mixture(Mixture(weights=WEIGHTS)))),
            ("plan", decode_plan, make_plan),
            (
                "masked sum",
                lambda blob: decode_masked_sum(blob, "masked.sum", "s", 1, 4),
                lambda rng: damaged_line(rng) + b"\n" + vector_bytes,
            ),
            (
                "enrolment",
                make_file_reader("enrolment", load_enrolment),
                damage_json(json.dumps(enrolment).encode()),
            ),
            (
                "register",
                make_file_reader("keys/devices.json", lambda path: read_devices(path.parent)),
                damage_json(json.dumps(register).encode()),
            ),
            ("shard", make_file_reader("shard.npz", load_shard), damage_zip(shard)),
            (
                "ring",
                make_file_reader("ring.npz", lambda path: load_ring(path, 4, 2, ())),
                damage_zip(saved_ring),
            ),
            (
                "csv",
                make_file_reader(
                    "a.csv", lambda path: read_source(make_source(str(path), window=2, label="label"))
                ),
                damage_lines(csv),
            ),
            ("class list", make_file_reader("classes.txt", read_class_list), damage_lines(b"walk\nrun\nsit")),
            (
                "npy",
                make_file_reader("a.npy", read_sample),
                lambda rng: (
                    flip_bytes(make_npy(), rng) if rng.random() < 0.7 else damage_bytes(make_npy(), rng)
                ),
            ),
            (
                "wav",
                make_file_reader("a.wav", read_sample),
                lambda rng: (
                    flip_bytes(make_wav(), rng) if rng.random() < 0.7 else damage_bytes(make_wav(), rng)
                ),
            ),
            ("idx", make_file_reader("a.gz", lambda path: read_idx(path, 2)), damage_idx),
            ("journal", make_file_reader("journal.sqlite", read_journal), damage_journal(journal)),
        )
    }
    return list(plain.values())


def make_npy() -> bytes:
    made = io.BytesIO()
    np.save(made, np.ones((2, 3), np.float32))
    return made.getvalue()


def make_wav() -> bytes:
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(64))
    return made.getvalue()


def damage_idx(rng: Rng) -> bytes:
    import gzip

    raw = (0x0802).to_bytes(4, "big") + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(6)
    return (
        gzip.compress(flip_bytes(raw, rng), 1)
        if rng.random() < 0.8
        else damage_bytes(gzip.compress(raw, 1), rng)
    )


OPENED = OpenedRound(number=1, phase="federate", nonce="n", cohort=("pi-1", "pi-2"))


def fill_journal(path: Path) -> None:
    """Write a journal with an open round that accepted two updates."""
    blob = encode_models({"global": WEIGHTS})
    digest = sha256(blob).hexdigest()
    with Journal(path.parent) as journal:
        journal.start(FederationStart(session="s", settings="{}", started=1.0))
        journal.open_round(OPENED)
        begins = [
            messages.Begin(
                client_id=client,
                session="s",
                round=1,
                plan=SHA,
                sha256=digest,
                size=len(blob),
                count=1,
                chunk_bytes=65536,
                num_samples=5,
                metrics={},
                nonce="n",
                ts=1.0,
            )
            for client in OPENED.cohort
        ]
        journal.accept(
            OPENED,
            [
                StoreUpdate(begin=begin, blob=blob, expected=MODELS, codec="fp32", deltas={})
                for begin in begins
            ],
        )


def damage_journal(content: bytes) -> Make:
    def make(rng: Rng) -> bytes:
        return flip_bytes(content, rng) if rng.random() < 0.7 else damage_bytes(content, rng)

    return make


def read_journal(path: Path) -> None:
    """Read a journal as a restarted aggregator does."""
    for leftover in path.parent.glob(f"{path.name}-*"):
        leftover.unlink()
    with Journal(path.parent) as journal:
        journal.read_start()
        opened = journal.read_round(1, "federate")
        for begin, codec in journal.read_intact(opened or OPENED):
            decode_models(journal.read_tensors(OPENED, begin), MODELS, begin.client_id, codec)
        list(journal.read_accepted(OPENED))
        journal.read_dropped()
        journal.read_losses("personalize")


def make_export_parsers() -> list[Parser]:
    """Return parsers of models, updates, counters and certificates of the firmware."""
    rng = np.random.default_rng(3)
    kernel = rng.integers(-90, 90, (3, 4)).astype(np.int8)
    model = make_tflite(
        [
            T(shape=(1, 4)),
            T(shape=(3, 4), scales=0.1, zero=0, data=kernel),
            T(shape=(3,), scales=0.005, zero=0, data=np.arange(3, dtype=np.int32), kind="INT32"),
            T(shape=(1, 3), scales=0.3),
        ],
        [Op(name="FULLY_CONNECTED", inputs=(0, 1, 2), outputs=(3,))],
    )
    parts = FirmwareParts("ab" * 32, (FirmwarePart("trunk", b"a" * 40), FirmwarePart("gate", b"b" * 24)))
    update = make_update(
        None,
        parts,
        counter=1,
        sign=lambda manifest: bytes(64),
        answer=lambda inputs: np.zeros((8, 2), np.int8),
        inputs=4,
    )
    counters = b"EFLD" + np.array([2, 5, 1, 2, 3, 400, 300, 9, 0], "<u4").tobytes()
    golden = encode_golden(
        GoldenVectors(
            x=np.ones((3, 4), np.float32),
            y=np.arange(3),
            inputs=np.ones((3, 4), np.int8),
            outputs=np.ones((3, 3), np.int8),
        )
    )
    certificate = {
        "certificate": 1,
        "target": "host",
        "files": {"model.tflite": SHA},
        "budget": {"ram_bytes": 0, "flash_bytes": 0},
    }
    damaged = [
        (
            "tflite network",
            read_quantized_model,
            lambda rng: flip_bytes(model, rng) if rng.random() < 0.8 else damage_bytes(model, rng),
        ),
        (
            "tflite graph",
            read_graph,
            lambda rng: flip_bytes(model, rng) if rng.random() < 0.8 else damage_bytes(model, rng),
        ),
        ("tflite to C", generate_c, lambda rng: flip_bytes(model, rng)),
        (
            "firmware update",
            read_update,
            lambda rng: flip_bytes(update, rng) if rng.random() < 0.7 else damage_bytes(update, rng),
        ),
        (
            "drift counters",
            read_counters,
            lambda rng: flip_bytes(counters, rng) if rng.random() < 0.7 else damage_bytes(counters, rng),
        ),
        ("golden vectors", decode_golden, damage_zip(golden)),
        ("certificate", read_certificate, damage_json(json.dumps(certificate).encode())),
    ]
    return [
        Parser(name=name, read=read, make=make, inputs=MIN_INPUTS, memory=20_000_000)
        for name, read, make in damaged
    ]


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Parser]]:
    """All parsers by group."""
    folder = tmp_path_factory.mktemp("fuzz")
    return {
        "messages": make_message_parsers(),
        "tensors": make_tensor_parsers(),
        "masked": make_masked_parsers(),
        "texts": make_text_parsers(),
        "files": make_file_parsers(folder),
        "exports": make_export_parsers(),
    }


GROUPS = ("messages", "tensors", "masked", "texts", "files", "exports")


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings(
    "ignore:Reading `.npy`:UserWarning"
)  # numpy warns about headers in the form of Python 2
def test_damaged_input_is_read_or_refused_with_an_edgefl_error(group, parsers):
    for number, parser in enumerate(parsers[group]):
        rng = np.random.default_rng([7, number])
        refused = 0
        read = 0
        for _ in range(math.ceil(parser.inputs * SCALE)):
            blob = parser.make(rng)
            try:
                parser.read(blob)
                read += 1
            except EdgeflError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{parser.name} raised {error!r} for {blob[:3000]!r}") from error
        print(f"{parser.name}: {refused + read} inputs, {refused} refused")
        assert refused or not parser.refuses, (
            f"{parser.name} refused none of {read} inputs: the mutations do not reach it"
        )


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
def test_parsers_stay_within_their_memory_limit(group, parsers):
    for number, parser in enumerate(parsers[group]):
        rng = np.random.default_rng([8, number])
        with contextlib.suppress(EdgeflError):
            parser.read(parser.make(rng))  # imports and caches do not count
        tracemalloc.start()
        try:
            for blob in (*BYTES, *(parser.make(rng) for _ in range(math.ceil(100 * min(1, 10 * SCALE))))):
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                # This module raises the last two errors when it splits an input
                with contextlib.suppress(EdgeflError, ValueError, RecursionError):
                    parser.read(blob)
                used_bytes = tracemalloc.get_traced_memory()[1] - before
                assert used_bytes < parser.memory, f"{parser.name} took {used_bytes} bytes for {blob[:80]!r}"
        finally:
            tracemalloc.stop()


def test_full_run_has_a_million_inputs_and_every_message_type(parsers):
    everything = [parser for group in parsers.values() for parser in group]
    assert sum(parser.inputs for parser in everything) >= TOTAL
    assert min(parser.inputs for parser in everything) >= MIN_INPUTS
    classes = {
        cls
        for cls in vars(messages).values()
        if isinstance(cls, type) and cls.__module__ == messages.__name__ and fields(cls)
    }
    assert {type(seed) for seed in SEEDS} >= classes
