"""The checks of a plan before a device runs it: the names in it, and its program in a child process."""

import json
import math
import random
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from devices.boards import detect_machine
from devices.local_dataset import LocalDataset
from devices.plan_check import (
    AllowedCode,
    PlanTrials,
    check_memory,
    check_names,
    choose_trial_limit_mb,
    find_usable_mb,
    try_in_child,
)
from devices.training import check_shard
from edgefl.base.errors import ConfigError, PlanError
from edgefl.base.system.host import read_memory_limit_mb
from edgefl.data.sources import DataSource
from edgefl.learning.algorithms import REGISTRY, complete_algorithm_options
from edgefl.program.plan.spec import Plan, TensorSpec, encode_plan, parse_spec, serialize_spec
from tests.support.numpy_learner.softmax import softmax_spec

SHA256 = "ab" * 32


@pytest.mark.parametrize(
    ("changes", "learner", "allowed", "error"),
    [
        ({}, "litert", AllowedCode(), ""),
        ({"algorithm": "mine:name"}, "litert", AllowedCode(), "algorithm 'mine:name'"),
        ({"algorithm": "mine:name"}, "litert", AllowedCode(("other:name",)), "algorithm 'mine:name'"),
        ({"algorithm": "mine:name"}, "litert", AllowedCode(("mine:name",)), ""),
        ({"algorithm": 3}, "litert", AllowedCode(), "algorithm '3'"),
        ({"model": "os:system"}, "litert", AllowedCode(), ""),  # only a label, because no model is built
        ({"model": "os:system"}, "keras", AllowedCode(), "model 'os:system'"),
        ({"model": "os:system"}, "keras", AllowedCode(("os:system",)), "model 'os:system'"),
        ({"model": "mine:net"}, "keras", AllowedCode((), ("mine:net",)), ""),
        ({"model": "/etc/own.keras"}, "keras", AllowedCode(), "model '/etc/own.keras'"),
        ({"options": {"gate": "os:system"}}, "keras", AllowedCode(), "model 'os:system'"),
        ({"options": {"gate": "gate-cnn"}}, "keras", AllowedCode(), ""),
        ({"num_classes": "3"}, "litert", AllowedCode(), "num_classes"),
        ({"input_shape": (4, 0)}, "litert", AllowedCode(), "input_shape"),
    ],
)
def test_plan_may_use_only_allowed_names(toys, changes, learner, allowed, error):
    spec = replace(toys.plan(algorithm="fedavg").spec, **changes)
    if not error:
        check_names(spec, learner, allowed)
        return
    with pytest.raises(PlanError, match=error):
        check_names(spec, learner, allowed)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_plan_of_every_algorithm_has_consistent_sizes(name):
    options = complete_algorithm_options(name, {})
    check_names(softmax_spec(name, inputs=4, features=3, classes=3, options=options), "litert", AllowedCode())


DAMAGED_VALUES = (
    0,
    1,
    -1,
    2,
    5,
    10**9,
    2**70,
    1.5,
    "",
    "x",
    [],
    {},
    None,
    True,
    [4],
    [2, 2],
    {"a": 1},
    ["x"],
)


def list_entries(value, path=()):
    """Yield the path of every entry of a JSON tree."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from list_entries(item, (*path, key))


def damage(text, seed):
    """Return a specification of which one entry is removed or has another value."""
    rng = random.Random(seed)
    tree = json.loads(text)
    *parents, key = rng.choice(list(list_entries(tree)))
    inner = tree
    for parent in parents:
        inner = inner[parent]
    if rng.random() < 0.2:
        del inner[key]
    else:
        inner[key] = rng.choice(DAMAGED_VALUES)
    return json.dumps(tree)


def test_damaged_specification_is_refused_as_a_plan_and_not_as_wrong_samples(tmp_path):
    """A device ends if its samples do not fit. A plan that contradicts itself only pauses it."""
    x = np.ones((30, 4), np.float32)
    np.savez(tmp_path / "shard.npz", x=x, y=np.arange(30) % 3)
    samples = LocalDataset(DataSource(data=str(tmp_path / "shard.npz")))
    text = serialize_spec(softmax_spec("fedavg", inputs=4, features=3, classes=3))
    refused = 0
    for seed in range(1000):
        try:
            spec = parse_spec(damage(text, seed))
            check_names(spec, "litert", AllowedCode())
            shard = samples.load_shard(spec)
            check_shard(shard, spec)
        except (PlanError, ConfigError):
            refused += 1
    assert refused > 100


@pytest.fixture
def blob(toys, program, tmp_path):
    def make(augmentation=None, **kind):
        spec = replace(toys.plan(algorithm="fedavg").spec, augmentation=augmentation or {})
        (tmp_path / "blob").write_bytes(
            encode_plan(Plan(spec=spec, program=program(spec, **kind), template=b""))
        )
        return tmp_path / "blob"

    return make


@pytest.mark.parametrize(
    ("kind", "limit_mb", "error"),
    [
        ({}, 256, ""),
        ({"huge": True}, 256, "does not run"),
        ({"crashes": True}, 256, None),
        ({"augmentation": {"shear": 1}}, 256, "augmentation does not fit"),
    ],
    ids=["good", "more memory than the limit", "crash", "unknown augmentation"],
)
def test_plan_trial_reports_failing_and_crashing_programs(blob, kind, limit_mb, error):
    done = subprocess.run(
        [sys.executable, "-m", "devices.plan_trial", blob(**kind), str(limit_mb)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == (-signal.SIGSEGV if error is None else int(bool(error))), done.stderr
    assert (error or "") in done.stderr and "Traceback" not in done.stderr


def test_plan_trial_loads_no_tensorflow_and_no_algorithm(blob):
    code = (
        "import sys; from devices.plan_trial import main; code = main(*sys.argv[1:]); sys.exit(code or "
        "any(name in sys.modules for name in ('tensorflow', 'keras', 'edgefl.learning.algorithms', 'paho')))"
    )
    assert subprocess.run([sys.executable, "-c", code, blob(), "256"], check=False).returncode == 0


def test_trial_result_describes_how_the_process_ended(tmp_path):
    def run_trial(code):
        return try_in_child(tmp_path, (sys.executable, "-c", code))

    assert run_trial("import os, signal; os.kill(os.getpid(), signal.SIGBUS)") == (
        "its program crashed the TFLite runtime (SIGBUS)",
        True,
    )
    reason, is_final = run_trial("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    # The kernel may have run out of memory, so the trial is repeated
    assert "SIGKILL" in reason and "memory" in reason and not is_final
    assert run_trial("import sys; print('why', file=sys.stderr); sys.exit(1)") == ("why", True)
    assert try_in_child(tmp_path, ("/no/such/program",))[1] is False


def test_trial_that_exceeds_processor_time_is_slow_and_not_crashed(tmp_path):
    code = (
        "import devices.plan_trial as trial; trial.CPU_LIMIT_S = 1; trial.set_limits(256)\nwhile True: pass"
    )
    reason, is_final = try_in_child(tmp_path, (sys.executable, "-c", code))
    assert "processor time" in reason and "crashed" not in reason, reason
    assert not is_final


def test_device_with_too_little_memory_refuses_with_both_figures(toys):
    """The trial runs beside the device's process, which takes 62 MB."""
    spec = replace(toys.plan(algorithm="fedavg").spec, process_mb=231)
    check_memory(spec, 293.0)
    check_memory(spec, math.nan)
    with pytest.raises(PlanError, match=r"needs about 293 MB .* may use 290 MB; set micro_batch of"):
        check_memory(spec, 290.4)
    check_memory(replace(spec, process_mb=0), 50.0)  # an older edgefl compiled the plan


@pytest.mark.parametrize(
    ("machine_mb", "limit_mb", "usable_mb", "trial_mb"),
    [
        (1000.0, math.nan, 750.0, 597),  # (750 - 2 * 62) / 1.048576
        (1000.0, 500.0, 500.0, 358),
        (437.0, math.nan, 327.75, 256),
        (math.nan, 500.0, 500.0, 358),
        (math.nan, math.nan, math.nan, 256),
    ],
)
def test_usable_memory_leaves_a_quarter_to_the_system_and_obeys_the_limit(
    machine_mb, limit_mb, usable_mb, trial_mb, monkeypatch
):
    machine = replace(detect_machine(), memory_mb=machine_mb)
    monkeypatch.setattr("devices.plan_check.detect_machine", lambda: machine)
    monkeypatch.setattr("devices.plan_check.read_memory_limit_mb", lambda: limit_mb)
    assert find_usable_mb() == pytest.approx(usable_mb, nan_ok=True)
    assert choose_trial_limit_mb() == trial_mb


@pytest.mark.parametrize(
    ("sizes", "listed"),
    [((3,), "3"), ((0,), "0"), ((1, 2), "1, 2"), ((None,), "0"), ((), "")],
    ids=["above the batch", "none", "different", "no axis", "no data"],
)
def test_plan_with_impossible_parts_is_refused(toys, sizes, listed):
    spec = toys.plan(algorithm="fedavg").spec
    train = spec.find_signature("train")
    shapes = [() if size is None else (size, 4) for size in sizes]
    parts = replace(
        train,
        batch_size=2,
        data=tuple(TensorSpec(f"x{i}", shape) for i, shape in enumerate(shapes)),
        gradients=train.trained,
    )
    with pytest.raises(
        PlanError, match=rf"signature train takes parts of \[{listed}\] samples, expected one"
    ):
        check_names(replace(spec, signatures=(parts,)), "litert", AllowedCode())
    allowed = replace(parts, data=(TensorSpec("x", (2, 4)),))
    check_names(replace(spec, signatures=(allowed,)), "litert", AllowedCode())


@pytest.mark.parametrize(
    ("group", "files", "limit_mb"),
    [
        ("0::/", {"memory.max": "100000000"}, 100),  # a container
        ("0::/system.slice/edgefl.service", {"system.slice/edgefl.service/memory.max": "64000000"}, 64),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "80000000", "memory.max": "90000000"}, 80),
        ("5:cpu:/a\n4:memory:/a", {"memory/a/memory.limit_in_bytes": "70000000"}, 70),  # version 1
        ("0::/a", {"a/memory.max": "max"}, math.nan),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, math.nan),
        ("", {}, math.nan),
        ("damaged\n0::/a", {"a/memory.max": "50000000"}, 50),
    ],
)
def test_memory_limit_is_the_smallest_of_the_control_groups(group, files, limit_mb, tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert read_memory_limit_mb(tmp_path) == pytest.approx(limit_mb, nan_ok=True)


CRASH = """
import os, signal, sys
from pathlib import Path
from devices.plan_check import PlanTrials
trials = PlanTrials(Path(sys.argv[1]))
print(trials.start())
trials.record_open_plan("{plan}")
os.kill(os.getpid(), signal.{signal})
"""


def test_plan_that_crashed_the_device_is_refused_after_restart(tmp_path):
    """A service manager that restarts the device does not run the plan again. The plan is not blamed for a
    kill.
    """

    def run(name):
        code = CRASH.format(plan=SHA256, signal=name)
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )

    assert run("SIGKILL").stdout == "\n"
    assert run("SIGSEGV").stdout == "\n"
    trials = PlanTrials(tmp_path)
    assert trials.start() == SHA256
    trials.close()
    trials = PlanTrials(tmp_path)
    assert trials.start() == ""  # the plan is blamed only once
    trials.close()
    with pytest.raises(
        PlanError, match=r"crashed this device's process \(Fatal Python error: Segmentation fault\)"
    ):
        trials.check(SHA256, tmp_path / "not read")


def test_verdicts_are_stored_by_runtime_version_and_bounded(blob, tmp_path, monkeypatch):
    trials = PlanTrials(tmp_path)
    path = blob(crashes=True)
    with pytest.raises(PlanError, match="SIGSEGV"):
        trials.check(SHA256, path)
    with pytest.raises(PlanError, match="SIGSEGV"):
        trials.check(SHA256, tmp_path / "not read")  # the verdict comes from the file
    monkeypatch.setattr("devices.plan_check.RUNTIME_VERSION", "a newer one")
    trials.check(SHA256, blob())
    trials.check(SHA256, tmp_path / "not read")
    for i in range(40):
        trials._store_verdict(f"{i:064}", "")
    assert len(json.loads((tmp_path / "plans.json").read_text())["verdicts"]) == 32
    (tmp_path / "plans.json").write_text("{")  # a truncated file: the trial is repeated
    trials.check(SHA256, blob())
