"""Real processes of the public command line, and a toy federation for them."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from edgefl.algorithms import complete_algorithm_options
from edgefl.data.npz import save_shard
from edgefl.plan.spec import Plan, save_plan
from edgefl.types import Shard
from edgefl.wire.topics import FederationTopics
from tests.support.numpy_learner.softmax import softmax_spec
from tests.support.ports import choose_port

DEADLINE_S = 90.0
ROOT = Path(__file__).parents[2]


class Process:
    """`python -m edgefl ...`, and what it has said so far. A device has the numpy learner too."""

    def __init__(self, *arguments, runner=()):
        program = "tests.support.device" if arguments[0] == "device" else "edgefl"
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)]))
        self.popen = subprocess.Popen(
            [sys.executable, *(runner or ("-m", program)), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        )
        self.said = ""
        self.changed = threading.Condition()
        self.out = ""
        self._threads = [
            threading.Thread(target=read, daemon=True) for read in (self._read_err, self._read_out)
        ]
        for thread in self._threads:
            thread.start()

    def _read_err(self):
        for line in self.popen.stderr:
            with self.changed:
                self.said += line
                self.changed.notify_all()
        self.popen.wait()
        with self.changed:  # who waits for a line that will not come any more
            self.changed.notify_all()

    def _read_out(self):
        for line in self.popen.stdout:
            with self.changed:
                self.out += line
                self.changed.notify_all()

    def wait_for(self, text, times=1):
        """Wait until it has said so, so many times."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: self.said.count(text) >= times or self.popen.poll() is not None, DEADLINE_S
            ), self.said
            self.changed.wait_for(lambda: self.said.count(text) >= times, 5.0)
        assert self.said.count(text) >= times, self.said

    def wait_for_lines(self, count):
        """Wait until it has said so many lines, or has ended."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: self.said.count("\n") >= count or self.popen.poll() is not None, DEADLINE_S
            ), self.said

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


class Broker:
    """A mosquitto without a memory, always on the same port."""

    def __init__(self):
        self.port = choose_port()
        self.start()

    def start(self):
        self.popen = subprocess.Popen(
            [shutil.which("mosquitto") or "/usr/sbin/mosquitto", "-p", str(self.port)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in self.popen.stderr:
            # A line before it speaks of clients running on this machine
            if line.rstrip().endswith(" running"):
                break
        # a pipe that nobody reads would stop it one day
        self._reader = threading.Thread(target=lambda: [None for _ in self.popen.stderr], daemon=True)
        self._reader.start()

    def kill(self):
        self.popen.kill()
        self.popen.wait()
        self._reader.join(10)
        self.popen.stderr.close()


def broker_of(kind):
    process = Process("broker", "start", "--port", "0", "--kind", kind, "--json")
    return process, json.loads(process.first_line())["url"]


def toy_plan(features=4, algorithm="pfl-mfe", **options):
    wanted = complete_algorithm_options(algorithm, {"epochs": 2, **options})
    return Plan(softmax_spec(algorithm, inputs=4, features=features, classes=3, options=wanted), b"", b"")


def with_validation_samples(plan):
    """Return the plan for devices that hold back validation samples."""
    personalization = {"select": False, "baseline": False, "validation_share": 0.25}
    return replace(plan, spec=replace(plan.spec, personalization=personalization))


def toy_weights(features=4, more=()):
    """Return the toy network's weights, and small random values for `more`, the specs of weights beside
    them.
    """
    head = {"head/kernel": np.zeros((features, 3), np.float32), "head/bias": np.zeros(3, np.float32)}
    rng = np.random.default_rng(3)
    others = {
        spec.name: rng.normal(0, 0.1, spec.shape).astype(np.float32) for spec in more if spec.name not in head
    }
    return others | {"trunk/kernel": np.eye(4, features, dtype=np.float32), **head}


def toy_shard(seed, count=30):
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(3), rng.integers(0, 3, count + 7)])
    x = (np.eye(3, 4)[y] * 2 + rng.normal(0, 0.7, (count + 10, 4))).astype(np.float32)
    return Shard(x[:count], y[:count], x[count:], y[count:], 3)


class Federation:
    """A toy federation of its own name on a broker, in a directory."""

    def __init__(self, url, directory, start, **settings):
        self.url = url
        self.directory = directory
        self.start = start
        self.name = f"t{secrets.token_hex(4)}"
        self.options = settings.pop("options", {})
        self.tables = settings.pop("tables", "")
        self.settings = {"rounds": 3, "min_clients": 2, "grace_s": 0.3, "deadline_s": 30.0, **settings}
        features = int(self.settings.pop("wide", False)) * 10_000 or 4
        self.algorithm = self.settings.pop("algorithm", "pfl-mfe")
        self.topics = FederationTopics(self.name)
        self._features = features
        self._save_plan()
        self.out = directory / f"out-{self.name}"

    def _save_plan(self):
        self.plan = toy_plan(self._features, self.algorithm, **self.options)
        if "evaluate" in self.settings:
            self.plan = with_validation_samples(self.plan)
        save_plan(self.plan, self.directory / "plan")
        (self.directory / "plan" / "initial.safetensors").write_bytes(
            save(toy_weights(self._features, self.plan.spec.weights))
        )

    def upgrade(self, **options):
        """Compile another plan in the place of the first."""
        self.options |= options
        self._save_plan()

    def command(self, name, url, *more):
        """Return the arguments of the aggregator, or of the device of that name."""
        if name != "aggregator":
            return (
                "device",
                "start",
                "--broker",
                url,
                "--federation",
                self.name,
                "--id",
                name,
                "--data",
                self.directory / f"{name}.npz",
                "--state",
                self.directory / f"state-{name}",
                "--learner",
                "numpy",
                "--no-export",
                "--json",
                *more,
            )
        rows = "\n".join(f"{key} = {json.dumps(value)}" for key, value in self.settings.items())
        config = self.directory / "federation.toml"
        algorithm = f'[algorithm]\nname = "{self.algorithm}"'
        config.write_text(
            f'[federation]\nname = "{self.name}"\n{rows}\n{algorithm}\n[broker]\nurl = "{url}"\n{self.tables}'
        )
        return (
            "aggregator",
            "start",
            "--config",
            config,
            "--plan",
            self.directory / "plan",
            "--out",
            self.out,
            *more,
        )

    def aggregator(self, *more):
        return self.start(*self.command("aggregator", self.url, *more))

    def aggregator_killed_at_lines(self, rng, low, high):
        """Kill the aggregator (-9) after so many of its lines, up to three times, and see it to its end."""
        for _ in range(3):
            aggregator = self.aggregator()
            aggregator.wait_for_lines(int(rng.integers(low, high)))
            aggregator.popen.kill()
            # One that was killed after its last line may not have told the devices yet: its restart does
            if aggregator.popen.wait() == 0:
                return
        aggregator = self.aggregator()
        assert aggregator.end() == 0, aggregator.said

    def device(self, client_id, shard=None, *more):
        if shard is not None:
            save_shard(self.directory / f"{client_id}.npz", shard)
        return self.start(*self.command(client_id, self.url, *more))

    def result(self):
        return json.loads((self.out / "result.json").read_text())


class Toys:
    """What the tests make shards and weights of."""

    plan = staticmethod(toy_plan)
    weights = staticmethod(toy_weights)
    shard = staticmethod(toy_shard)
    save = staticmethod(save_shard)

    @staticmethod
    def save_initial(directory):
        (directory / "initial.safetensors").write_bytes(save(toy_weights()))


class Services:
    """For fixtures that live longer than a test."""

    Process = Process
    Broker = Broker
    Federation = Federation
    save_shard = staticmethod(save_shard)
    shard = staticmethod(toy_shard)
