"""A plan or a model that a device cannot use, or that would harm it: the device pauses, says why, and takes
part in the next good one.
"""

import contextlib
import json
import subprocess
import time
from dataclasses import replace

import numpy as np
from safetensors.numpy import save

from edgefl.plan.spec import Plan, encode_plan

DEADLINE_S = 60.0

OWN = """
from edgefl.algorithms.papers.fedavg import ENTRIES as FEDAVG

print("imported own_rounds", flush=True)
ENTRIES = {"mine": FEDAVG["fedavg"]}
"""


def until_online(aggregator, device):
    deadline = time.monotonic() + DEADLINE_S
    while not aggregator.next("status").online:
        assert time.monotonic() < deadline and device.popen.poll() is None, device.said


def until_paused(aggregator, device, about=""):
    """Wait until the device's status says that it is paused, not because it just started, with a reason about
    this; return the reason.
    """
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        status = aggregator.next("status")
        if not status.online:  # its last word, or what the broker keeps of the process before it
            with contextlib.suppress(subprocess.TimeoutExpired):
                device.popen.wait(2.0)
            assert device.popen.poll() is None, (
                f"the device is gone with exit code {device.popen.poll()}: {device.said[-2000:]}"
            )
            continue
        if status.paused and "has not yet checked" not in status.paused and about in status.paused:
            return status.paused
    raise AssertionError(device.said)


def end(device):
    device.popen.terminate()
    assert device.end() == 0, device.said


def takes_part(aggregator, device):
    """See the device through a round of this aggregator's."""
    aggregator.say("federate", 1)
    aggregator.task(1)
    begin = aggregator.next("begin")
    assert begin.session == aggregator.session, device.said
    aggregator.take(begin)


def lead_with(lead, federation, plan):
    """Return an aggregator whose federation runs this plan."""
    aggregator = lead(federation)
    aggregator.plan = aggregator.offer(encode_plan(plan))
    aggregator.say("federate", 1)
    return aggregator


def test_a_plan_cannot_make_a_device_import_a_module(
    federate, mosquitto_url, toys, lead, tmp_path, monkeypatch
):
    """One device sees one bad plan after another, and then a good one."""
    (tmp_path / "own_rounds.py").write_text(OWN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    federation = federate(mosquitto_url, algorithm="fedavg")
    device = None
    for algorithm in ("this:x", "pip.__main__:x", "no-such-algorithm", "own_rounds:mine"):
        hostile = lead_with(
            lead,
            federation,
            replace(federation.plan, spec=replace(federation.plan.spec, algorithm=algorithm)),
        )
        device = device or federation.device("pi-1", toys.shard(1))
        until_online(hostile, device)
        hostile.task(1)
        reason = until_paused(hostile, device, algorithm)
        assert "refuses the plan" in reason and algorithm in reason
        hostile.say("done", 2)  # a federation that it took no part in does not end it
    takes_part(lead(federation), device)
    end(device)
    assert "Beautiful is better than ugly" not in device.out and "imported own_rounds" not in device.out
    assert device.said.count("the plan is refused") == 4 and "--algorithm" in device.said


def test_an_algorithm_of_the_owners_runs_when_it_was_named_at_the_start(
    federate, mosquitto_url, toys, lead, tmp_path, monkeypatch
):
    (tmp_path / "own_rounds.py").write_text(OWN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    federation = federate(mosquitto_url, algorithm="fedavg")
    aggregator = lead_with(
        lead,
        federation,
        replace(federation.plan, spec=replace(federation.plan.spec, algorithm="own_rounds:mine")),
    )
    device = federation.device("pi-1", toys.shard(1), "--algorithm", "own_rounds:mine")
    aggregator.next("status")
    takes_part(aggregator, device)
    end(device)
    assert "imported own_rounds" in device.out


def test_a_program_that_crashes_the_runtime_pauses_the_device_once_and_for_all(
    federate, mosquitto_url, toys, lead, program
):
    federation = federate(mosquitto_url, algorithm="fedavg")
    spec = federation.plan.spec
    crashing = Plan(spec, program(spec, crashes=True), b"")
    good = Plan(spec, program(spec), b"")
    hostile = lead_with(lead, federation, crashing)
    device = federation.device("pi-1", toys.shard(1), "--learner", "litert")
    assert hostile.next("status").online
    hostile.task(1)
    reason = until_paused(hostile, device)
    assert "crashed the TFLite runtime (SIGSEGV)" in reason
    takes_part(lead_with(lead, federation, good), device)
    end(device)
    state = federation.directory / "state-pi-1"
    verdicts = json.loads((state / "plans.json").read_text())["verdicts"]
    assert {key: bool(verdict["reason"]) for key, verdict in verdicts.items()} == {
        crashing.id: True,
        good.id: False,
    }
    # started again, as a service manager does, it goes by the verdicts
    again = lead_with(lead, federation, crashing)
    device = federation.device("pi-1", None, "--learner", "litert")
    assert "SIGSEGV" in until_paused(again, device)
    end(device)
    assert json.loads((state / "plans.json").read_text())["verdicts"] == verdicts


def test_a_device_that_receives_what_it_cannot_use_says_so_and_takes_part_in_the_next_round(
    federate, mosquitto_url, toys, lead
):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)

    def model(changes):
        return {"models": {"global": aggregator.offer(model_of(toys, changes))}}

    cases = [
        ({"plan": aggregator.offer(b"no plan at all")}, "is not a plan"),
        (
            {"models": {"global": aggregator.offer(b"no tensors, but of a size that fits the plan")}},
            "sent bytes that are not safetensors",
        ),
        (model({"head/bias": [0, np.nan, 0]}), "1 NaN or infinite values"),
        (model({"head/bias": [0, np.inf, 0]}), "1 NaN or infinite values"),
        (model({"head/bias": [0, 0]}), "head/bias"),
        (model({"head/kernel": [[3e38] * 3] * 4}), "the loss is"),
        ({"models": {}}, "do not fit the plan"),
    ]
    device = federation.device("pi-1", toys.shard(1))
    until_online(aggregator, device)
    for number, (damage, says) in enumerate(cases):
        bad = 2 * number + 1
        good = 2 * number + 2
        aggregator.task(bad, **damage)
        reason = until_paused(
            aggregator, device, "refuses the plan" if "plan" in damage else f"refuses round {bad}:"
        )
        assert says in reason
        aggregator.task(good)
        begin = aggregator.next("begin")
        assert (begin.round, begin.session) == (good, aggregator.session)
        aggregator.take(begin)
        while aggregator.next("status").paused:
            pass
    end(device)
    assert (device.said.count("the plan is refused"), device.said.count("the task is refused")) == (1, 6)


def model_of(toys, changes):
    """Return the toy's weights as they travel, with some changed."""
    return save(
        {**toys.weights(), **{name: np.array(values, np.float32) for name, values in changes.items()}}
    )
