"""`--metrics-port`: the answer of a real aggregator, read with Prometheus's own parser. Also `--log`,
which belongs to the same options.
"""

import json
import re
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request

import pytest

from edgefl.base.verdict import judge_federation
from edgefl.cli.main import run_command as edgefl
from edgefl.protocol.wire.messages import Receipt, State
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.verdict_message import make_verdict_message
from mqtt_broker.integrations import prometheus
from mqtt_broker.integrations.prometheus import MALFORMED, REASON_PHRASES, FederationMetrics, classify_reason

KINDS = {*(kind for kind, _ in REASON_PHRASES), MALFORMED}


def scrape(url):
    parser = pytest.importorskip("prometheus_client.parser")
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    return {
        (
            sample.name,
            *(value for name, value in sorted(sample.labels.items()) if name != "federation"),
        ): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def find_metrics_url(aggregator):
    aggregator.wait_for("/metrics")
    found = re.search(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", aggregator.err)
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("stale: an update of round 2, round 3 is open; wait for its task", "stale"),
        ("duplicate: round 2 has update 35f91e95 of pi-1; send one update a round", "duplicate"),
        (
            "the nonce 'x' is not this round's: a replayed update; answer the task that was sent last",
            "replayed",
        ),
        ("pi-9 is not in the cohort of round 3; wait for a task", "no task"),
        ("pi-1 runs the plan aaaa, expected bbbb; restart it", "other plan"),
        ("pi-1 was revoked; enrol it with `edgefl device enrol pi-1`", "not enrolled"),
        (
            "head/kernel of pi-1 holds 3 NaN or infinite values, expected none; lower its learning rate",
            "not finite",
        ),
        ("head/kernel of pi-1 is [5], expected (4, 3); it runs another plan; restart it", "malformed"),
    ],
)
def test_rejection_reason_is_classified(reason, kind):
    assert classify_reason(reason) == kind


def test_rejected_updates_are_counted_by_reason():
    figures = FederationMetrics("f")
    refused = Receipt(
        round=1,
        sha256="a" * 64,
        outcome="rejected",
        missing=(),
        reason="duplicate: round 1",
        nonce="",
        ts=1.0,
    )
    for payload in (
        encode_json(refused),
        encode_json(refused),
        b"{",
        encode_json(Receipt(round=1, sha256="a" * 64, outcome="ok", missing=(), reason="", nonce="", ts=1.0)),
    ):
        figures.take("edgefl/v2/f/device/pi-1/receipt", payload, 2.0)
    pytest.importorskip("prometheus_client")
    (family,) = (family for family in figures.collect() if family.name == "edgefl_rejected_updates")
    assert {sample.labels["reason"]: sample.value for sample in family.samples} == {
        **dict.fromkeys(KINDS, 0.0),
        "duplicate": 2.0,
    }


def collect_verdict_metrics(*rows):
    """Return the samples of a verdict on a federation of these devices, and the metrics object that
    collected them.
    """
    figures = FederationMetrics("f")
    state = State(
        federation="f",
        session="s",
        phase="done",
        round=2,
        rounds=1,
        cohort_size=0,
        deadline_s=30.0,
        plan="p",
        ts=1.0,
    )
    figures.take("edgefl/v2/f/state", encode_json(state), 2.0)
    message = make_verdict_message(judge_federation(rows), "s", 1.0, with_rows=True)
    figures.take("edgefl/v2/f/verdict", encode_json(message), 2.0)
    pytest.importorskip("prometheus_client")
    samples = (sample for family in figures.collect() for sample in family.samples)
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name != "federation")): sample.value
        for sample in samples
        if sample.name.startswith("edgefl_verdict")
    }, figures


def test_verdict_metrics_match_the_verdict():
    row = {"accuracy_local": 0.5, "accuracy_shipped": 0.75, "test_gained": 10.0, "test_lost": 0.0}
    found, _ = collect_verdict_metrics({"id": "pi-1", **row}, {"id": "pi-2", **row, "test_gained": 0.0})
    (sentence,) = (key[1] for key in found if key[0] == "edgefl_verdict_info")
    assert sentence.startswith("The federation was worth it for 1 of 2 devices")
    assert found == {
        ("edgefl_verdict_accuracy", "local"): 0.5,
        ("edgefl_verdict_accuracy", "shipped"): 0.75,
        ("edgefl_verdict_devices", "better"): 1,
        ("edgefl_verdict_devices", "as_good"): 1,
        ("edgefl_verdict_devices", "worse"): 0,
        ("edgefl_verdict_gain_points",): 25.0,
        ("edgefl_verdict_info", sentence): 1,
    }
    found, _ = collect_verdict_metrics({"id": "pi-1", "accuracy_shipped": 0.75})
    assert {key for key in found if key[0] != "edgefl_verdict_info"} == {
        ("edgefl_verdict_accuracy", "shipped")
    }
    found, _ = collect_verdict_metrics({"id": "pi-1", "auc_shipped": 0.75})
    assert {key for key in found if key[0] != "edgefl_verdict_info"} == {("edgefl_verdict_auc", "shipped")}


LEAVES_AFTER_SCRAPE = """
import sys, threading
from mqtt_broker.integrations.prometheus import FederationMetrics, serve_metrics

collected, leaving = threading.Event(), threading.Event()

class Metrics(FederationMetrics):
    def collect(self):
        yield from super().collect()
        collected.set()
        leaving.wait(20)

with serve_metrics(Metrics("f"), "127.0.0.1", 0) as url:
    print(url, flush=True)
    collected.wait(20)
    leaving.set()
"""


def test_last_scrape_is_answered_before_the_process_ends():
    """The process leaves while the metrics are collected, and no byte of the answer has been sent."""
    pytest.importorskip("prometheus_client")
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES_AFTER_SCRAPE], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert ("edgefl_round",) in scrape(process.stdout.readline().strip())
        assert process.wait(20) == 0


def test_silent_connection_does_not_delay_the_end(monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus, "SILENT_SCRAPER_TIMEOUT_S", 0.1)
    with prometheus.serve_metrics(FederationMetrics("f"), "127.0.0.1", 0) as url:
        silent = socket.create_connection(("127.0.0.1", urllib.parse.urlsplit(url).port))
        scrape(url)  # the server has accepted the earlier connection too
    with silent:
        assert silent.recv(1) == b""


def test_aggregator_waits_only_for_a_previous_scraper():
    pytest.importorskip("prometheus_client")
    figures = FederationMetrics("f")
    state = State(
        federation="f",
        session="s",
        phase="done",
        round=2,
        rounds=1,
        cohort_size=0,
        deadline_s=30.0,
        plan="p",
        ts=1.0,
    )
    list(figures.collect())
    assert not figures.is_awaiting_scrape(), "the end was not heard"
    figures.take("edgefl/v2/f/state", encode_json(state), 2.0)
    assert figures.is_awaiting_scrape()
    list(figures.collect())
    assert not figures.is_awaiting_scrape()
    figures.wait_for_scrape(0.0)
    never_scraped = FederationMetrics("f")
    never_scraped.take("edgefl/v2/f/state", encode_json(state), 2.0)
    assert not never_scraped.is_awaiting_scrape()


def test_running_aggregator_exposes_metrics_of_a_federation(federate, mosquitto_url, toys, puppet, listen):
    """Two real devices play two rounds. A puppet sends an invalid update in the first round and leaves
    after the scrape.
    """
    federation = federate(mosquitto_url, rounds=2, min_clients=3, grace_s=0.1)
    listener = listen(federation)
    aggregator = federation.aggregator(
        "--metrics-port", "0", "--log", f"tensorboard:{federation.directory / 'tb'}"
    )
    url = find_metrics_url(aggregator)
    before = scrape(url)
    assert before["edgefl_rounds_closed_total",] == 0
    assert ("edgefl_round_loss",) not in before
    assert before["process_resident_memory_bytes",] > 20e6
    client = puppet(federation, "pi-9")
    devices = [federation.device(f"pi-{i}", toys.shard(i)) for i in (1, 2)]
    assert client.send(client.next("task"), b"no safetensors").outcome == "rejected"
    listener.wait_for_topic("round/1/summary")
    client.next("task")  # the second round is open and cannot close before this client answers
    answers = []
    done = threading.Event()

    def scrape_until_done():
        while not done.is_set():
            answers.append(scrape(url))
            if (
                answers[-1]["edgefl_rejected_updates_total", "malformed"]
                and answers[-1]["edgefl_round",] == 2
            ):
                done.set()

    watcher = threading.Thread(target=scrape_until_done, daemon=True)
    watcher.start()
    assert done.wait(40)
    watcher.join(20)
    metrics = answers[-1]
    first = json.loads(next(m.payload for m in listener.messages if m.topic.endswith("round/1/summary")))
    assert metrics["edgefl_round_loss",] == first["loss"]
    assert metrics["edgefl_round_seconds",] == first["seconds"]
    assert (
        metrics["edgefl_round_updates",],
        metrics["edgefl_updates_total",],
        metrics["edgefl_rounds_closed_total",],
    ) == (2, 2, 1)
    assert metrics["edgefl_payload_bytes_total", "up"] == first["bytes_up"]
    assert metrics["edgefl_payload_bytes_total", "down"] == first["bytes_down"]
    assert (metrics["edgefl_rounds",], metrics["edgefl_cohort_size",], metrics["edgefl_devices_online",]) == (
        2,
        3,
        3,
    )
    assert metrics["edgefl_phase", "federate"] == 1
    states = {key[1]: value for key, value in metrics.items() if key[0] == "edgefl_devices"}
    assert states.keys() == {
        "rejected",
        "silent",
        "offline",
        "paused",
        "training",
        "sent",
        "idle",
        "finished",
    }
    assert sum(states.values()) == 3
    client.drop_connection()
    # the aggregator does not end before the verdict is scraped
    aggregator.wait_for("waiting for a last scrape of the metrics")
    last = scrape(url)
    verdict = federation.result()["verdict"]
    assert last["edgefl_verdict_accuracy", "shipped"] == pytest.approx(verdict["means"]["shipped"], abs=1e-4)
    assert last["edgefl_verdict_info", verdict["sentence"]] == 1
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0]

    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(federation.directory / "tb"))
    events.Reload()
    losses = federation.result()["losses"]
    assert [(e.step, e.value) for e in events.Scalars("round/loss")] == [
        (i, pytest.approx(loss)) for i, loss in enumerate(losses, 1)
    ]
    (accuracy,) = events.Scalars("end/accuracy_shipped/mean")
    assert accuracy.step == 3
    (shipped,) = events.Scalars("verdict/shipped")
    assert (shipped.step, shipped.value) == (3, pytest.approx(verdict["means"]["shipped"]))


def test_metrics_port_in_use_is_an_error(federate, mosquitto_url):
    port = mosquitto_url.rsplit(":", 1)[1]
    aggregator = federate(mosquitto_url).aggregator("--metrics-port", port)
    assert aggregator.end() == 1
    assert "for --metrics-port" in aggregator.err


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (("--home-assistant-clear",), "give --home-assistant too"),
        (("--home-assistant", "a/#"), "expected the prefix"),
        (("--log", "paper"), "expected tensorboard:DIR or mlflow:URI"),
    ],
)
def test_invalid_integration_options_are_rejected(more, error, tmp_path, capfd):
    config = tmp_path / "f.toml"
    config.write_text("")
    assert edgefl(["aggregator", "start", "--config", str(config), *more]) == 1
    assert error in capfd.readouterr().err


def test_log_option_is_refused_with_differential_privacy(tmp_path, capfd):
    config = tmp_path / "f.toml"
    config.write_text(
        "[privacy]\nnoise_multiplier = 1.0\nclip = 1.0\npopulation = 10\n[federation]\nclients_per_round = "
        "2\n"
    )
    assert edgefl(["aggregator", "start", "--config", str(config), "--log", "tensorboard:x"]) == 1
    assert "does not work with [privacy]" in capfd.readouterr().err
