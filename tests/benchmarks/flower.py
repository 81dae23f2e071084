"""Flower on its deployment runtime, without TLS: one SuperLink, and one SuperNode for each client.

Flower needs its own virtual environment, because its dependencies differ from those of edgefl. Each SuperNode
is a process, as each board has a device service.
"""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefl.base.errors import ConfigError, EdgeflError
from mqtt_broker.broker.dev_broker import LOOPBACK_HOST
from tests.benchmarks.process import start_program
from tests.support.ports import choose_port

FLOWER = "flwr"
TESTED = f"{FLOWER}==1.41.0"
PROJECT = """
[project]
name = "edgefl-bench"
version = "1.0.0"
description = "a peer of edgefl's benchmarks"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "edgefl"

[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"

[tool.flwr.app.config]
"""
RUNTIME = "bench"
"""The name of the SuperLink in Flower's configuration."""
PRINT_VERSIONS = """
import importlib.metadata, json, sys
def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps([version(package) for package in sys.argv[1:]]))
"""
START_S = 120.0
POLL_S = 0.2
LOG_LINES = 3

NodeConfig = Mapping[str, str | int]
RunConfig = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Deployment:
    """A SuperLink and its SuperNodes, running.

    Attributes:
        programs: the directory of Flower's programs.
        env: the environment of all processes.
        log: the file that all processes write to.
        nodes: the process ids of the SuperNodes.
    """

    programs: Path
    env: Mapping[str, str]
    log: Path
    nodes: tuple[int, ...]

    def start_run(self, app: Path) -> None:
        """Start a run of an app, see `write_app`. Waits until the SuperLink answers.

        Raises:
            EdgeflError: the SuperLink does not accept the run.
        """
        command = [str(self.programs / "flwr"), "run", str(app), RUNTIME]
        deadline = time.monotonic() + START_S
        output = ""
        while time.monotonic() < deadline:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=self.env, timeout=START_S
            )
            if done.returncode == 0:
                return
            output = done.stderr + done.stdout
            time.sleep(POLL_S)  # the SuperLink does not answer yet
        raise EdgeflError(f"`flwr run` failed: {output.strip()[-300:]}")

    def wait_for(
        self, result: Path, timeout_s: float, while_waiting: Callable[[], None] = lambda: None
    ) -> Any:
        """Return the JSON that a ServerApp writes at its end.

        Args:
            result: the file of the JSON.
            timeout_s: how long to wait, in seconds.
            while_waiting: called several times a second.

        Raises:
            EdgeflError: the file does not appear in time. The message ends with the last lines of the log.
        """
        deadline = time.monotonic() + timeout_s
        while not result.exists():
            if time.monotonic() > deadline:
                last = " ".join(self.log.read_text().splitlines()[-LOG_LINES:])
                raise EdgeflError(f"Flower was not done after {timeout_s:g} s: {last}")
            while_waiting()
            time.sleep(POLL_S)
        return json.loads(result.read_text())


def read_package_versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages in another Python.

    Raises:
        ConfigError: a package is missing in that Python, or it cannot be started.
    """
    versions: list[str | None] = [None] * len(packages)
    with contextlib.suppress(OSError):
        command = [python, "-c", PRINT_VERSIONS, *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            versions = json.loads(done.stdout)
    present = {
        package: version for package, version in zip(packages, versions, strict=True) if version is not None
    }
    if missing := [package for package in packages if package not in present]:
        install = " ".join(TESTED if package == FLOWER else package for package in missing)
        raise ConfigError(
            f"{python} has no {', '.join(missing)}; give --flwr-python a Python that has what is missing "
            f"(pip install {install})"
        )
    return present


def write_app(directory: Path, client: str, server: str, config: RunConfig) -> Path:
    """Write a Flower app and return its directory.

    Args:
        directory: where to write it.
        client: the source of the module with the ClientApp `app`.
        server: the source of the module with the ServerApp `app`.
        config: what the app reads as `context.run_config`.
    """
    files = {
        "pyproject.toml": PROJECT
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()),
        "app/__init__.py": "",
        "app/client.py": client,
        "app/server.py": server,
    }
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


@contextmanager
def start_deployment(directory: Path, python: str, nodes: Sequence[NodeConfig]) -> Iterator[Deployment]:
    """Start a SuperLink and its SuperNodes, and stop them at the end of the block.

    Args:
        directory: holds Flower's configuration and the log.
        python: a Python that has flwr.
        nodes: the configuration of each SuperNode, which an app reads as `context.node_config`.
    """
    programs = Path(python).absolute().parent
    port = choose_port()
    home = directory / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{RUNTIME}"\n\n'
        f'[superlink.{RUNTIME}]\naddress = "{LOOPBACK_HOST}:{port}"\ninsecure = true\n'
    )
    env = {
        **os.environ,
        "FLWR_HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": "",
    }
    log = directory / "flower.log"
    link = [str(programs / "flower-superlink"), "--insecure", "--disable-runtime-dependency-installation"]
    node = [str(programs / "flower-supernode"), "--insecure", "--superlink", f"{LOOPBACK_HOST}:{port}"]
    with ExitStack() as stack:
        stack.enter_context(
            start_program([*link, "--host", LOOPBACK_HOST, "--port", str(port)], log, env=env)
        )
        processes = [
            stack.enter_context(
                start_program(
                    [
                        *node,
                        "--host",
                        LOOPBACK_HOST,
                        "--port",
                        str(choose_port()),
                        *_format_node_config(config),
                    ],
                    log,
                    env=env,
                )
            )
            for config in nodes
        ]
        yield Deployment(
            programs=programs, env=env, log=log, nodes=tuple(process.pid for process in processes)
        )


def _format_node_config(config: NodeConfig) -> list[str]:
    pairs = [f"{key}={json.dumps(value)}" for key, value in config.items()]
    return ["--node-config", " ".join(pairs)] if pairs else []
