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

from edgefl.base.types import Shard
from edgefl.data.npz import save_shard
from edgefl.learning.algorithms import complete_algorithm_options
from edgefl.program.plan.spec import Plan, save_plan
from edgefl.protocol.wire.topics import FederationTopics
from tests.support.numpy_learner.softmax import softmax_spec
from tests.support.ports import choose_port

DEADLINE_S = 90.0
ROOT = Path(__file__).parents[2]


class Process:
    """`python -m edgefl ...`, with its output so far in `out` and `err`. A device has the numpy learner
    too.
    """

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
        self.err = ""
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
                self.err += line
                self.changed.notify_all()
        self.popen.wait()
        with self.changed:  # waiting threads must notice that no line will come any more
            self.changed.notify_all()

    def _read_out(self):
        for line in self.popen.stdout:
            with self.changed:
                self.out += line
                self.changed.notify_all()

    def wait_for(self, text, times=1):
        """Wait until standard error contains the text this many times."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: self.err.count(text) >= times or self.popen.poll() is not None, DEADLINE_S
            ), self.err
            self.changed.wait_for(lambda: self.err.count(text) >= times, 5.0)
        assert self.err.count(text) >= times, self.err

    def wait_for_lines(self, count):
        """Wait until standard error has this many lines, or the process has ended."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: self.err.count("\n") >= count or self.popen.poll() is not None, DEADLINE_S
            ), self.err

    def first_line(self):
        with self.changed:
            assert self.changed.wait_for(lambda: "\n" in self.out, DEADLINE_S), self.err
        return self.out.splitlines()[0]

    def end(self, timeout_s=DEADLINE_S):
        """Wait for the end and return the exit code. `out` and `err` are complete then."""
        code = self.popen.wait(timeout_s)
        for thread in self._threads:
            thread.join(10)
        assert "Traceback" not in self.err, self.err
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
    """A mosquitto without persistence, always on the same port."""

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
            # An earlier line mentions clients running on this machine
            if line.rstrip().endswith(" running"):
                break
        # an unread pipe would block the broker when it is full
        self._reader = threading.Thread(target=lambda: [None for _ in self.popen.stderr], daemon=True)
        self._reader.start()

    def kill(self):
        self.popen.kill()
        self.popen.wait()
        self._reader.join(10)
        self.popen.stderr.close()


def start_broker(kind):
    process = Process("broker", "start", "--port", "0", "--kind", kind, "--json")
    return process, json.loads(process.first_line())["url"]


def make_toy_plan(features=4, algorithm="pfl-mfe", **options):
    complete_options = complete_algorithm_options(algorithm, {"epochs": 2, **options})
    return Plan(
        spec=softmax_spec(algorithm, inputs=4, features=features, classes=3, options=complete_options),
        program=b"",
        template=b"",
    )


def add_validation_share(plan):
    """Return the plan with a share of validation samples that devices hold out."""
    personalization = {"select": False, "baseline": False, "validation_share": 0.25}
    return replace(plan, spec=replace(plan.spec, personalization=personalization))


def make_toy_weights(features=4, more=()):
    """Return the weights of the toy network, with small random values for `more`, the specs of additional
    weights.
    """
    head = {"head/kernel": np.zeros((features, 3), np.float32), "head/bias": np.zeros(3, np.float32)}
    rng = np.random.default_rng(3)
    others = {
        spec.name: rng.normal(0, 0.1, spec.shape).astype(np.float32) for spec in more if spec.name not in head
    }
    return others | {"trunk/kernel": np.eye(4, features, dtype=np.float32), **head}


def make_toy_shard(seed, count=30):
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(3), rng.integers(0, 3, count + 7)])
    x = (np.eye(3, 4)[y] * 2 + rng.normal(0, 0.7, (count + 10, 4))).astype(np.float32)
    return Shard(x_train=x[:count], y_train=y[:count], x_test=x[count:], y_test=y[count:], num_classes=3)


class Federation:
    """A toy federation under its own name on a broker, in a directory."""

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
        self.plan = make_toy_plan(self._features, self.algorithm, **self.options)
        if "evaluate" in self.settings:
            self.plan = add_validation_share(self.plan)
        save_plan(self.plan, self.directory / "plan")
        (self.directory / "plan" / "initial.safetensors").write_bytes(
            save(make_toy_weights(self._features, self.plan.spec.weights))
        )

    def upgrade(self, **options):
        """Compile another plan in place of the first."""
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

    def run_aggregator_with_kills(self, rng, low, high):
        """Kill the aggregator (-9) up to three times after a random number of log lines, then run it to
        its end.
        """
        for _ in range(3):
            aggregator = self.aggregator()
            aggregator.wait_for_lines(int(rng.integers(low, high)))
            aggregator.popen.kill()
            # An aggregator killed after its last line may not have informed the devices yet. Its restart does
            if aggregator.popen.wait() == 0:
                return
        aggregator = self.aggregator()
        assert aggregator.end() == 0, aggregator.err

    def device(self, client_id, shard=None, *more):
        if shard is not None:
            save_shard(self.directory / f"{client_id}.npz", shard)
        return self.start(*self.command(client_id, self.url, *more))

    def result(self):
        return json.loads((self.out / "result.json").read_text())


class Toys:
    """Makes plans, weights and shards of the toy federation."""

    plan = staticmethod(make_toy_plan)
    weights = staticmethod(make_toy_weights)
    shard = staticmethod(make_toy_shard)
    save = staticmethod(save_shard)

    @staticmethod
    def save_initial(directory):
        (directory / "initial.safetensors").write_bytes(save(make_toy_weights()))


class Services:
    """Classes and functions for fixtures that live longer than a test."""

    Process = Process
    Broker = Broker
    Federation = Federation
    save_shard = staticmethod(save_shard)
    shard = staticmethod(make_toy_shard)
