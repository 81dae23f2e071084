"""LeNet-5 in LiteRT over MQTT, with a listener on `#`: the bits match the simulator, no topic has private
values, and no device loads TensorFlow.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.config import load_config
from edgefl.data.npz import load_shard
from edgefl.learning.algorithms.measurement import MEAN, MOMENTS, VARIANCE, make_measurement_plan
from edgefl.learning.algorithms.range_test import FACTORS, LOSSES, prepare_range_test
from edgefl.learning.checkpoint import decode_server_state, decode_stored_mixture
from edgefl.program.plan.measured_values import with_learning_rate
from edgefl.program.plan.normalization import has_placeholders, set_normalization
from edgefl.program.plan.spec import PREDICT_MIXTURE, TensorSpec, decode_plan, load_plan
from edgefl.protocol.server.comparison import average_shares, rank_models
from edgefl.protocol.wire import messages
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.tensors import decode_models, decode_weights, read_header
from edgefl.protocol.wire.topics import TOPIC_PREFIX, parse_topic
from edgefl.simulation.measurement import find_learning_rate, normalize_plan
from edgefl.simulation.simulate import simulate
from mqtt_broker.aggregator.plan_source import build_plan_in_child, open_built_plan

IDS = ("pi-1", "pi-2")
PUBLIC = {
    "state": messages.State,
    "summary": messages.Summary,
    "verdict": messages.Verdict,
    "manifest": messages.Manifest,
    "status": messages.Status,
    "metrics": messages.Metrics,
    "task": messages.Task,
    "receipt": messages.Receipt,
    "want": messages.Want,
    "claim": messages.Claim,
    "begin": messages.Begin,
    "end": messages.End,
}


MFE = """name = "pfl-mfe"
epochs = 1
adapt_epochs = 1
gate_epochs = 1
"""
SGD_IN_TURNS = """least_steps = 0
alternate = true
gate_optimizer = "sgd"
gate_momentum = 0.9
"""
LOCAL = """name = "local"
epochs = 2
schedule = "cosine"
"""
AUGMENTATION = """
[augmentation]
crop = 2
flip = true
rotate = 10
"""
NORMALIZATION = "mean = [0.3]\nstd = [0.4]"
MIXTURES = {
    "mixture": {"select": "false", "range_test": "false", "model": "", "algorithm": MFE},
    "selected": {"select": "true", "range_test": "true", "model": "normalize = true", "algorithm": MFE},
    "augmented": {
        "select": "true",
        "range_test": "false",
        "model": NORMALIZATION,
        "algorithm": MFE + SGD_IN_TURNS + AUGMENTATION,
    },
}
SCHEDULED = {
    "select": "false",
    "range_test": "false",
    "model": NORMALIZATION,
    "algorithm": LOCAL + AUGMENTATION,
}
VARIANTS = {**MIXTURES, "scheduled": SCHEDULED}
SLOW = {name: pytest.param(name, marks=pytest.mark.slow) for name in ("augmented", "mixture", "scheduled")}
of_mixtures = pytest.mark.parametrize(
    "variant", [SLOW.get(name, name) for name in MIXTURES], indirect=True, scope="module"
)


@pytest.fixture(scope="module", params=[SLOW.get(name, name) for name in VARIANTS])
def variant(request):
    """The text that differs between the configurations."""
    return VARIANTS[request.param]


@pytest.fixture(scope="module")
def select(variant):
    """Whether a device selects between its models."""
    return variant["select"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory, variant):
    directory = tmp_path_factory.mktemp("lenet")
    (directory / "federation.toml").write_text(TOML.format(url="mqtt://unused", **variant))
    build_plan_in_child(directory / "federation.toml", directory / "plan")
    return directory / "plan"


FEDERATION_TOPICS = f"{TOPIC_PREFIX}/lenet/"
TOML = """[federation]
name = "lenet"
rounds = 2
min_clients = 2
range_test = {range_test}

[model]
name = "lenet5"
{model}

[algorithm]
{algorithm}
[personalization]
select = {select}

[broker]
url = "{url}"
"""


@pytest.fixture(scope="module")
def finished_run(plan, variant, tmp_path_factory, request):
    """Run the federation once. Yields the directory, all messages, the memory maps of the processes and
    the output of the devices.
    """
    pytest.importorskip("sklearn")
    url = request.getfixturevalue("mosquitto_url")
    services = request.getfixturevalue("services")
    directory = tmp_path_factory.mktemp("run")
    (directory / "federation.toml").write_text(TOML.format(url=url, **variant))
    for i, client_id in enumerate(IDS):
        services.save_shard(directory / f"{client_id}.npz", make_digits_shard(i))
    listener = request.getfixturevalue("listen_to_all")(url)
    processes = [
        services.Process(
            "aggregator",
            "start",
            "--config",
            directory / "federation.toml",
            "--plan",
            plan,
            "--out",
            directory / "out",
        )
    ]
    for client_id in IDS:
        data = directory / f"{client_id}.npz"
        state = directory / client_id
        processes.append(
            services.Process(
                "device",
                "start",
                "--broker",
                url,
                "--id",
                client_id,
                "--data",
                data,
                "--state",
                state,
                "--json",
            )
        )
    try:
        while not all(is_training(listener.messages, each) for each in IDS):
            listener.wait_for_topic("begin")
        maps = [Path(f"/proc/{process.popen.pid}/maps").read_text() for process in processes]
        # the broker also retains messages of the federations of other tests
        everything = listener.wait_for_phase("done")
        foreign = ("edgefl/", "ha-")  # the second: the Home Assistant messages of other aggregators
        published = [
            each
            for each in everything
            if each.topic.startswith(FEDERATION_TOPICS) or not each.topic.startswith(foreign)
        ]
        assert [process.end() for process in processes] == [0, 0, 0], [process.err for process in processes]
        yield directory, published, maps, [json.loads(process.out) for process in processes[1:]]
    finally:
        for process in processes:
            process.close()
        listener.link.close()


def is_training(received, client_id):
    """Return whether a device has answered a round. Mean and std are measured before the rounds."""
    begins = (
        decode_json(messages.Begin, each.payload)
        for each in received
        if each.topic.startswith(f"{FEDERATION_TOPICS}device/{client_id}/up/")
        and each.topic.endswith("/begin")
    )
    return any("loss" in begin.metrics for begin in begins)


def make_digits_shard(part):
    from edgefl.base.types import Shard
    from edgefl.data import load_dataset

    data = load_dataset("digits")
    train = slice(part * 100, part * 100 + 100)
    test = slice(part * 40, part * 40 + 40)
    return Shard(
        x_train=data.x_train[train],
        y_train=data.y_train[train],
        x_test=data.x_test[test],
        y_test=data.y_test[test],
        num_classes=10,
    )


def test_mqtt_and_simulator_give_the_same_bits(finished_run, plan):
    directory, *_ = finished_run
    config = load_config(directory / "federation.toml")
    made, initial = open_built_plan(plan, config)
    shards = {client_id: load_shard(directory / f"{client_id}.npz", num_classes=10) for client_id in IDS}
    made = normalize_plan(made, shards, config.seed)
    if config.range_test:
        made = find_learning_rate(made, initial, shards, config.seed)
        result = json.loads((directory / "out" / "result.json").read_text())
        assert result["learning_rate"] == made.spec.options["learning_rate"] == 0.03
    end = simulate(made, initial, shards, config)
    state = decode_server_state((directory / "out" / "server_state.safetensors").read_bytes())
    assert set(state.models) == set(end.state.models)
    for model, weights in end.state.models.items():
        for name, array in weights.items():
            assert state.models[model][name].tobytes() == array.tobytes(), name
    for client_id in IDS:
        found = decode_stored_mixture(
            (directory / client_id / "mixture.safetensors").read_bytes()
        ).mixture.weights
        for name, array in end.mixtures[client_id].weights.items():
            assert found[name].tobytes() == array.tobytes(), name


def test_no_device_or_aggregator_loads_tensorflow(finished_run):
    _, _, maps, made = finished_run
    for each in maps:
        assert "libpython" in each or "python" in each
        assert "site-packages/tensorflow/" not in each
    assert all("ai_edge_litert" in each for each in maps[1:])
    assert [each["tensorflow_loaded"] for each in made] == [False, False]


@of_mixtures
def test_result_reports_model_and_measurements_of_each_device(finished_run):
    directory, *_ = finished_run
    result = json.loads((directory / "out" / "result.json").read_text())
    keys = {
        "id",
        "n_train",
        "accuracy_local",
        "accuracy_federated",
        "accuracy_mixture",
        "accuracy_shipped_int8",
        "tflite_bytes",
        "peak_rss_mb",
        "bytes_up",
        "bytes_down",
    }
    for row in result["clients"]:
        assert keys <= set(row)
        assert row["tflite_bytes"] == (directory / row["id"] / "model" / "model.tflite").stat().st_size
        assert row["bytes_up"] > 2 * 4 * 61_706
        assert row["peak_rss_mb"] < 100
    verdict = result["verdict"]
    assert verdict["better"] + verdict["as_good"] + verdict["worse"] == len(result["clients"])
    for row, client in zip(verdict["rows"], result["clients"], strict=True):
        assert (row["local"], row["shipped"]) == (client["accuracy_local"], client["accuracy_shipped"])
        assert row["int8"] == client["accuracy_shipped_int8"]


@of_mixtures
def test_every_published_message_and_tensor_is_public(finished_run, plan):
    """JSON messages decode strictly, so they have no undocumented field. Binary messages are blobs or
    updates.
    """
    directory, published, *_ = finished_run
    built = load_plan(plan)
    spec = built.spec
    names = {f"global/{weight.name}" for weight in spec.weights}
    moments = {}  # mean and variance of each channel, in place of the weights
    losses = {}  # the losses of the range test
    sent_specs = ()
    if has_placeholders(spec):
        result = json.loads((directory / "out" / "result.json").read_text())
        measured = result["normalization"]
        normalized = set_normalization(built, measured["mean"], measured["std"])
        measurement = make_measurement_plan(built).spec
        _, initial = open_built_plan(plan, load_config(directory / "federation.toml"))
        tested = prepare_range_test(normalized, initial, 1)[0].spec
        losses = {LOSSES: tested.weights[-1:]}
        assert tested.weights == (*spec.weights, TensorSpec(LOSSES, (len(FACTORS),)))
        spec = with_learning_rate(normalized, result["learning_rate"]).spec
        sent_specs = (measurement, tested)
        moments = {MOMENTS: measurement.weights}
        assert {weight.name: weight.shape for weight in measurement.weights} == {MEAN: (1,), VARIANCE: (1,)}
    kinds = set()
    for message in published:
        address = parse_topic(message.topic)
        kinds.add(address.kind)
        if address.kind in PUBLIC and message.payload:
            decode_json(PUBLIC[address.kind], message.payload)
        else:
            assert address.kind in ("blob", "chunk") or not message.payload
    assert kinds >= {
        "state",
        "status",
        "task",
        "begin",
        "chunk",
        "receipt",
        "manifest",
        "blob",
        "summary",
        "metrics",
    }
    updates = join_chunks(published, "chunk")
    blobs = join_chunks(published, "blob")
    # Two rounds and the measurements, and one empty answer that all devices share
    assert len(updates) == (2 + len(sent_specs)) * len(IDS) + 1
    for blob in updates.values():
        if f"{MOMENTS}/{MEAN}" in read_header(blob, "")[0]:
            decode_models(blob, moments, "")
            continue
        if f"{LOSSES}/{LOSSES}" in read_header(blob, "")[0]:
            assert set(read_header(blob, "")[0]) == {f"{LOSSES}/{LOSSES}"}
            decode_models(blob, losses, "")
            continue
        assert set(read_header(blob, "")[0]) in (names, set())
        decode_models(blob, {"global": spec.weights}, "")
    for blob in blobs.values():
        if not blob[16:].strip(b"\0"):
            continue  # Random bytes and zeros, with which the aggregator measures the broker's limit
        if "spec" in read_header(blob, "")[0]:
            assert decode_plan(blob).spec in (spec, *sent_specs)
        elif MEAN in read_header(blob, "")[0]:
            decode_weights(blob, moments[MOMENTS], "")
        elif LOSSES in read_header(blob, "")[0]:
            assert not decode_weights(blob, tested.weights[-1:], "")[LOSSES].any()
        else:
            assert set(decode_weights(blob, spec.weights, "")) == {weight.name for weight in spec.weights}


@of_mixtures
def test_devices_send_scores_last_round_and_get_ranks_in_last_task(finished_run, select):
    _, messages, *_ = finished_run
    asked = 2 if select == "true" else None  # the last round
    reported, blended = {}, {}
    for begin in decode_kind(messages, "begin"):
        scores = {name: value for name, value in begin["metrics"].items() if name.startswith("score_")}
        assert bool(scores) == (begin["round"] == asked)
        if scores:
            reported[begin["client_id"]] = scores
            blended[begin["client_id"]] = {
                name: value for name, value in begin["metrics"].items() if name.startswith("blend_")
            }
    models = {"score_local", "score_federated", "score_fine_tuned", "score_mixture"}
    assert [set(each) for each in reported.values()] == [models] * (len(IDS) if select == "true" else 0)
    for task in decode_kind(messages, "task"):
        assert ("compare" in task["scalars"]) == (task["round"] == asked)
        ranks = {name: value for name, value in task["scalars"].items() if name.startswith("rank_")}
        is_last = task["phase"] == "personalize" and select == "true"
        order = rank_models(
            [{k.removeprefix("score_"): v for k, v in each.items()} for each in reported.values()]
        )
        assert ranks == ({f"rank_{name}": place for place, name in enumerate(order)} if is_last else {})
        shares = {name: value for name, value in task["scalars"].items() if name.startswith("blend_")}
        means = average_shares(
            [{k.removeprefix("blend_"): v for k, v in each.items()} for each in blended.values()]
        )
        assert shares == ({f"blend_{name}": share for name, share in means.items()} if is_last else {})


def decode_kind(messages, kind):
    """Return the decoded JSON messages of a kind."""
    current = [message for message in messages if message.payload]
    return [json.loads(message.payload) for message in current if parse_topic(message.topic).kind == kind]


def join_chunks(published, kind):
    """Return all published blobs or updates, joined and checked against their sha256."""
    parts = {}
    for message in published:
        address = parse_topic(message.topic)
        if address.kind == kind and message.payload:  # an empty message removes a blob from the broker
            parts.setdefault(address.sha256, {})[address.index] = message.payload
    joined = {sha256: b"".join(found[i] for i in sorted(found)) for sha256, found in parts.items()}
    assert all(hashlib.sha256(blob).hexdigest() == sha256 for sha256, blob in joined.items())
    return joined


def list_windows(array, floats=4):
    """Return runs of four neighbouring values as bytes, without those that are nearly constant. A shorter
    array is returned whole.
    """
    flat = np.ascontiguousarray(array, "<f4").reshape(-1)
    if flat.size < floats:
        return {flat.tobytes()} if flat.all() else set()
    rows = np.lib.stride_tricks.sliding_window_view(flat, floats)[:: floats * 4]
    return {row.tobytes() for row in rows if len(np.unique(row)) > 2}


@of_mixtures
def test_no_private_value_is_in_any_payload(finished_run, plan):
    """No four neighbouring floats of local experts, gates, local models or samples are in any published
    message.
    """
    directory, published, *_ = finished_run
    payload = b"\0".join(
        [m.payload for m in published]
        + list(join_chunks(published, "chunk").values())
        + list(join_chunks(published, "blob").values())
    )
    state = decode_server_state((directory / "out" / "server_state.safetensors").read_bytes())
    # a weight that no sample changes stays as every client received it
    unmoved = set().union(
        *(list_windows(array) for model in state.models.values() for array in model.values())
    )
    checked = 0
    for client_id in IDS:
        stored = decode_stored_mixture((directory / client_id / "mixture.safetensors").read_bytes())
        mixture = stored.mixture.weights
        private_parts = ("local/", "gate/") if stored.mixture.signature == PREDICT_MIXTURE else ""
        shard = load_shard(directory / f"{client_id}.npz", num_classes=10)
        private = {name: array for name, array in mixture.items() if name.startswith(private_parts)}
        assert private
        for array in (*private.values(), shard.x_train, shard.x_test):
            found = list_windows(array) - unmoved
            checked += len(found)
            assert not any(window in payload for window in select_sample(found))
        assert (directory / client_id / "model" / "model.tflite").read_bytes()[:2000] not in payload
    assert checked > 1000
    # the search finds public values
    assert all(
        window in payload for window in select_sample(list_windows(state.models["global"]["fc1/kernel"]))
    )


def select_sample(found, count=400):
    return sorted(found)[:: max(1, len(found) // count)]
