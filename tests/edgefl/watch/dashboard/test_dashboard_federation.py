"""The page follows a real federation: processes of the command line, a real broker, a real browser."""

import os
import re
import signal
import time
from dataclasses import replace

import pytest

from edgefl.base.config import FederationConfig
from edgefl.learning.algorithms.clustering.hierarchical import (
    build_linkage,
    cosine_distance,
    cosine_similarity,
    cut_widest,
)
from edgefl.protocol.transport.link import Link
from edgefl.protocol.wire.messages import Clusters, State
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright; pip install playwright")
expect = playwright.expect
expect.set_options(timeout=90_000)
IDS = ("pi-0", "pi-1", "pi-2")


def locate_card(page, client_id):
    return page.locator(f"#cards li[data-id={client_id}]")


def test_page_shows_new_rounds_and_silent_and_offline_devices(
    broker, make_federation, toys, start_dashboard, visitor
):
    federation = make_federation(broker.url, rounds=100_000, min_clients=3, quorum=1.0, deadline_s=10.0)
    federation.aggregator()
    devices = {
        client_id: federation.device(client_id, toys.shard(i, 30), "--keepalive", "600")
        for i, client_id in enumerate(IDS)
    }
    _, url = start_dashboard(broker.url)
    page = visitor.visit(url)
    expect(page.locator("#federation")).to_have_text(federation.name)
    expect(page.locator("#table-rounds summary")).to_be_visible()
    seen = int(page.text_content("#round-number").split()[1])
    page.click("#table-rounds summary")
    expect(page.locator("#table-rounds tbody tr").nth(3)).to_contain_text("federate")
    expect(page.locator("#round-number")).not_to_have_text(f"Round {seen} of 100000")
    assert int(page.text_content("#round-number").split()[1]) > seen
    expect(locate_card(page, "pi-1").locator("svg.spark")).to_be_visible()

    os.kill(devices["pi-1"].popen.pid, signal.SIGSTOP)
    expect(locate_card(page, "pi-1")).to_have_attribute("data-state", "silent")
    # It may have been stopped in its training or in its upload
    expect(locate_card(page, "pi-1")).to_have_text(re.compile("silent: (no answer to|its update of) round"))
    visitor.save_picture(page, "federation-silent")
    devices["pi-1"].popen.kill()
    expect(locate_card(page, "pi-1")).to_have_attribute("data-state", "offline")
    expect(page.locator("#counts li[data-state=offline] strong")).to_have_text("1")
    assert locate_card(page, "pi-0").get_attribute("data-state") in ("sent", "idle")


def test_page_follows_published_clusters(broker, start_dashboard, visitor):
    clients = tuple(f"pi-{i}" for i in range(6))
    vectors = [[1.0, 0.1 * i, 0.0] if i % 2 else [0.0, 0.1 * i, 1.0] for i in range(6)]
    merges = build_linkage(cosine_distance(vectors), "average")
    cut = cut_widest(merges)
    matrix = tuple(tuple(row) for row in cosine_similarity(vectors).round(3).tolist())
    rows = tuple((int(a), int(b), float(height), int(size)) for a, b, height, size in merges)
    link = Link(broker.url, "aggregator")
    topics = FederationTopics("kitchen")

    def publish_clusters(round, assignment, **comparison):
        link.publish(
            topics.state,
            encode_json(
                State(
                    federation="kitchen",
                    session="s",
                    phase="federate",
                    round=round,
                    rounds=9,
                    cohort_size=6,
                    deadline_s=60.0,
                    plan="p",
                    ts=time.time(),
                )
            ),
            retain=True,
        )
        assigned = dict(zip(clients, assignment, strict=True))
        message = Clusters(session="s", round=round, assignment=assigned, ts=time.time(), **comparison)
        link.publish(topics.clusters, encode_json(message), retain=True)

    try:
        publish_clusters(1, [0] * 6, layer="", clients=(), matrix=(), linkage=(), cut=float("nan"))
        _, url = start_dashboard(broker.url)
        page = visitor.visit(url)
        expect(page.locator("#note-members")).to_contain_text("6 clients in 1 cluster.")
        expect(page.locator("#box-heat")).to_be_hidden()
        publish_clusters(
            2,
            cut.labels.tolist(),
            layer="head/kernel",
            clients=clients,
            matrix=matrix,
            linkage=rows,
            cut=cut.height,
        )
        expect(page.locator("#note-members")).to_contain_text("6 clients in 2 clusters.")
        expect(page.locator("#note-heat")).to_contain_text("cosine similarity of head/kernel, 6 clients")
        page.click("#table-members summary")
        row = page.locator("#table-members tbody tr", has_text="pi-1")
        expect(row).to_have_text("pi-101")
        visitor.save_picture(page, "federation-told")
    finally:
        link.close(1.0)


def make_permuted_shards(toys):
    """Return the shards of four clients, two of them with permuted labels."""
    shards = {f"pi-{i}": toys.shard(i, 40) for i in range(4)}
    for client_id in ("pi-1", "pi-3"):
        shard = shards[client_id]
        shards[client_id] = replace(shard, y_train=(shard.y_train + 1) % 3, y_test=(shard.y_test + 1) % 3)
    return shards


@pytest.mark.slow
def test_page_shows_a_cluster_that_splits(broker, make_federation, toys, start_dashboard, visitor):
    """With this seed, all clients of AEM start with the same expert, and exploring clients find the other."""
    options = {"num_experts": 2, "local_epochs": 3, "gate_epochs": 3, "learning_rate": 0.05}
    federation = make_federation(
        broker.url, rounds=6, min_clients=4, quorum=1.0, seed=7, algorithm="aem", options=options
    )
    shards = make_permuted_shards(toys)
    expected = []
    plan = federation.plan
    config = FederationConfig(rounds=6, seed=7, algorithm="aem")

    def record_experts(state, record):
        expected.append([int(record.updates[client_id]["expert"]) for client_id in shards])

    simulate(
        plan,
        toys.weights(4, plan.spec.weights),
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(plan.spec),
        progress=record_experts,
    )
    assert (expected[0], expected[5]) == ([0] * 4, [1, 0, 1, 0])
    _, url = start_dashboard(broker.url, "--federation", federation.name)
    page = visitor.visit(url)
    expect(page.locator("#waiting")).to_contain_text("No message of")
    aggregator = federation.aggregator()
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    assert aggregator.end() == 0, aggregator.err
    expect(page.locator("#round-phase")).to_contain_text("finished")
    expect(page.locator("#note-members")).to_contain_text("4 clients in 2 clusters.")
    page.click("#table-members summary")
    for client_id, row in zip(shards, zip(*expected[:6], strict=True), strict=True):
        shown = page.locator("#table-members tbody tr", has_text=client_id).locator("td").all_text_contents()
        assert [int(cell) for cell in shown[-6:]] == list(row)
    visitor.save_picture(page, "federation-split")
    assert [device.end() for device in devices] == [0] * 4


@pytest.mark.slow
def test_page_shows_the_clusters_of_a_clustered_federation(
    broker, make_federation, toys, start_dashboard, visitor
):
    federation = make_federation(
        broker.url,
        rounds=4,
        min_clients=4,
        algorithm="clustered",
        options={"learning_rate": 0.1, "compare": "deltas", "cut": "auto"},
    )
    _, url = start_dashboard(broker.url, "--federation", federation.name)
    page = visitor.visit(url)
    expect(page.locator("#waiting")).to_contain_text("No message of")
    aggregator = federation.aggregator()
    devices = [federation.device(client_id, shard) for client_id, shard in make_permuted_shards(toys).items()]
    expect(page.locator("#note-members")).to_contain_text("4 clients in 2 clusters.")
    expect(page.locator("#note-heat")).to_contain_text(
        "4 clients in the order of the dendrogram. Dashed line: the cut"
    )
    page.click("#table-members summary")
    last = [
        page.locator("#table-members tbody tr", has_text=f"pi-{i}").locator("td").last.text_content()
        for i in range(4)
    ]
    assert last == ["0", "1", "0", "1"]
    assert aggregator.end() == 0, aggregator.err
    expect(page.locator("#round-phase")).to_contain_text("finished")
    expect(page.locator("#box-dots g")).to_have_count(4)
    visitor.save_picture(page, "federation-clustered")
    assert [device.end() for device in devices] == [0] * 4
