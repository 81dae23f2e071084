"""A plan or model that a device cannot use or that would harm it: the device pauses, reports the reason, and
joins the next good round.
"""

import contextlib
import json
import subprocess
import time
from dataclasses import replace

import numpy as np
from safetensors.numpy import save

from edgefl.program.plan.spec import Plan, encode_plan

DEADLINE_S = 60.0

CUSTOM_ALGORITHM = """
from edgefl.learning.algorithms.papers.fedavg import ENTRIES as FEDAVG

print("imported own_rounds", flush=True)
ENTRIES = {"mine": FEDAVG["fedavg"]}
"""


def wait_until_online(aggregator, device):
    deadline = time.monotonic() + DEADLINE_S
    while not aggregator.next("status").online:
        assert time.monotonic() < deadline and device.popen.poll() is None, device.err


def wait_until_paused(aggregator, device, subject=""):
    """Wait until the status reports a pause whose reason contains the subject, other than the pause after a
    start. Return the reason.
    """
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        status = aggregator.next("status")
        if not status.online:  # its last status, or the retained status of the process before it
            with contextlib.suppress(subprocess.TimeoutExpired):
                device.popen.wait(2.0)
            assert device.popen.poll() is None, (
                f"the device is gone with exit code {device.popen.poll()}: {device.err[-2000:]}"
            )
            continue
        if status.paused and "has not yet checked" not in status.paused and subject in status.paused:
            return status.paused
    raise AssertionError(device.err)


def stop_device(device):
    device.popen.terminate()
    assert device.end() == 0, device.err


def play_round(aggregator, device):
    """Play a round of this aggregator with the device."""
    aggregator.send_state("federate", 1)
    aggregator.send_task(1)
    begin = aggregator.next("begin")
    assert begin.session == aggregator.session, device.err
    aggregator.accept_update(begin)


def offer_plan(fake_aggregator, federation, plan):
    """Return an aggregator whose federation runs this plan."""
    aggregator = fake_aggregator(federation)
    aggregator.plan = aggregator.offer_blob(encode_plan(plan))
    aggregator.send_state("federate", 1)
    return aggregator


def test_device_refuses_a_plan_for_which_it_has_too_little_memory(
    federate, mosquitto_url, toys, fake_aggregator, program
):
    federation = federate(mosquitto_url, algorithm="fedavg")
    spec = federation.plan.spec
    huge = Plan(spec=replace(spec, process_mb=10**9), program=program(spec), template=b"")
    aggregator = offer_plan(fake_aggregator, federation, huge)
    device = federation.device("pi-1", toys.shard(1), "--learner", "litert")
    wait_until_online(aggregator, device)
    aggregator.send_task(1)
    reason = wait_until_paused(aggregator, device, "MB of memory")
    assert "set micro_batch of [training]" in reason and "about 1000000062 MB" in reason
    stop_device(device)


def test_plan_cannot_make_a_device_import_a_module(
    federate, mosquitto_url, toys, fake_aggregator, tmp_path, monkeypatch
):
    """The device sees one bad plan after another, and then a good one."""
    (tmp_path / "own_rounds.py").write_text(CUSTOM_ALGORITHM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    federation = federate(mosquitto_url, algorithm="fedavg")
    device = None
    for algorithm in ("this:x", "pip.__main__:x", "no-such-algorithm", "own_rounds:mine"):
        hostile = offer_plan(
            fake_aggregator,
            federation,
            replace(federation.plan, spec=replace(federation.plan.spec, algorithm=algorithm)),
        )
        device = device or federation.device("pi-1", toys.shard(1))
        wait_until_online(hostile, device)
        hostile.send_task(1)
        reason = wait_until_paused(hostile, device, algorithm)
        assert "refuses the plan" in reason and algorithm in reason
        hostile.send_state("done", 2)  # a federation that the device did not join does not end it
    play_round(fake_aggregator(federation), device)
    stop_device(device)
    assert "Beautiful is better than ugly" not in device.out and "imported own_rounds" not in device.out
    assert device.err.count("the plan is refused") == 4 and "--algorithm" in device.err


def test_custom_algorithm_runs_when_allowed_at_start(
    federate, mosquitto_url, toys, fake_aggregator, tmp_path, monkeypatch
):
    (tmp_path / "own_rounds.py").write_text(CUSTOM_ALGORITHM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    federation = federate(mosquitto_url, algorithm="fedavg")
    aggregator = offer_plan(
        fake_aggregator,
        federation,
        replace(federation.plan, spec=replace(federation.plan.spec, algorithm="own_rounds:mine")),
    )
    device = federation.device("pi-1", toys.shard(1), "--algorithm", "own_rounds:mine")
    aggregator.next("status")
    play_round(aggregator, device)
    stop_device(device)
    assert "imported own_rounds" in device.out


def test_crashing_plan_pauses_the_device_also_after_restart(
    federate, mosquitto_url, toys, fake_aggregator, program
):
    federation = federate(mosquitto_url, algorithm="fedavg")
    spec = federation.plan.spec
    crashing = Plan(spec=spec, program=program(spec, crashes=True), template=b"")
    good = Plan(spec=spec, program=program(spec), template=b"")
    hostile = offer_plan(fake_aggregator, federation, crashing)
    device = federation.device("pi-1", toys.shard(1), "--learner", "litert")
    assert hostile.next("status").online
    hostile.send_task(1)
    reason = wait_until_paused(hostile, device)
    assert "crashed the TFLite runtime (SIGSEGV)" in reason
    play_round(offer_plan(fake_aggregator, federation, good), device)
    stop_device(device)
    state = federation.directory / "state-pi-1"
    verdicts = json.loads((state / "plans.json").read_text())["verdicts"]
    assert {key: bool(verdict["reason"]) for key, verdict in verdicts.items()} == {
        crashing.id: True,
        good.id: False,
    }
    # after a restart by a service manager, the device applies the stored verdicts
    again = offer_plan(fake_aggregator, federation, crashing)
    device = federation.device("pi-1", None, "--learner", "litert")
    assert "SIGSEGV" in wait_until_paused(again, device)
    stop_device(device)
    assert json.loads((state / "plans.json").read_text())["verdicts"] == verdicts


def test_device_refuses_unusable_plan_or_model_and_joins_next_round(
    federate, mosquitto_url, toys, fake_aggregator
):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)

    def make_model_task(changes):
        return {"models": {"global": aggregator.offer_blob(encode_changed_weights(toys, changes))}}

    cases = [
        ({"plan": aggregator.offer_blob(b"no plan at all")}, "is not a plan"),
        (
            {"models": {"global": aggregator.offer_blob(b"no tensors, but of a size that fits the plan")}},
            "sent bytes that are not safetensors",
        ),
        (make_model_task({"head/bias": [0, np.nan, 0]}), "1 NaN or infinite values"),
        (make_model_task({"head/bias": [0, np.inf, 0]}), "1 NaN or infinite values"),
        (make_model_task({"head/bias": [0, 0]}), "head/bias"),
        (make_model_task({"head/kernel": [[3e38] * 3] * 4}), "the loss is"),
        ({"models": {}}, "do not fit the plan"),
        ({"models": {"global": "../../#"}}, "a blob is named '../../#', expected its sha256"),
        ({"plan": "A" * 64}, f"a blob is named '{'A' * 64}', expected its sha256"),
    ]
    device = federation.device("pi-1", toys.shard(1))
    wait_until_online(aggregator, device)
    for number, (damage, error) in enumerate(cases):
        bad = 2 * number + 1
        good = 2 * number + 2
        aggregator.send_task(bad, **damage)
        reason = wait_until_paused(
            aggregator, device, "refuses the plan" if "plan" in damage else f"refuses round {bad}:"
        )
        assert error in reason
        aggregator.send_task(good)
        begin = aggregator.next("begin")
        assert (begin.round, begin.session) == (good, aggregator.session)
        aggregator.accept_update(begin)
        while aggregator.next("status").paused:
            pass
    stop_device(device)
    assert (device.err.count("the plan is refused"), device.err.count("the task is refused")) == (2, 7)


def encode_changed_weights(toys, changes):
    """Return the encoded toy weights, with some changed."""
    return save(
        {**toys.weights(), **{name: np.array(values, np.float32) for name, values in changes.items()}}
    )
