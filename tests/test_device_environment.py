"""A device needs only the base install. These tests build such an environment and run a federation in it.

The base install of other machines consists of wheels.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Set
from pathlib import Path

import numpy as np
import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edgefl.base.config import PartitionConfig
from edgefl.cli.demo.processes import Children
from edgefl.data import load_dataset, make_shards
from edgefl.data.dataset import subsample
from edgefl.data.npz import save_shard
from tests.support.project_copy import copy_project
from tests.support.rooms import PACKAGES

ROOT = Path(__file__).parents[1]
OFFLINE = (
    "NewConnectionError",
    "Temporary failure in name resolution",
    "Name or service not known",
    "timed out",
    "ProxyError",
    "ConnectionError",
)
CONFIG = """
[federation]
name = "boards"
rounds = 2
min_clients = 2
[algorithm]
name = "pfl-mfe"
epochs = 2
adapt_epochs = 2
gate_epochs = 2
"""


GLIBC_MINORS = range(17, 37)
"""glibc 2.17 is the oldest version that wheels support (manylinux2014). Raspberry Pi OS 12 has glibc 2.36."""
ONLY_ON_PIWHEELS = frozenset({"cffi", "numpy"})
"""PyPI has no armv7l wheels of these packages. piwheels.org has them, and Raspberry Pi OS adds it to pip's
indexes.
"""


def install_with_pip(python: Path, *arguments: str) -> str:
    ran = subprocess.run(
        [str(python), "-m", "pip", "install", "-q", *arguments], capture_output=True, text=True, timeout=280
    )
    if ran.returncode and any(sign in ran.stderr for sign in OFFLINE):
        pytest.skip(f"pip reaches no package registry: {ran.stderr.strip().splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def resolve_wheels(machine: str, python: str, missing: Set[str] = frozenset()) -> dict[str, str]:
    """Return package -> wheel file of the base install on another machine, without the packages in `missing`.

    pip evaluates markers for the interpreter that runs it. This function evaluates them for the other
    machine, and calls pip again until the wheels satisfy each other's requirements.
    """
    environment = {
        **default_environment(),
        "platform_machine": machine,
        "python_version": python,
        "python_full_version": f"{python}.0",
        "extra": "",
    }
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
    options = [f"--platform={platform}" for platform in [*platforms, f"manylinux2014_{machine}"]]
    options += [f"--python-version={python}", "--implementation=cp", "--only-binary=:all:"]
    options += ["--dry-run", "--report=-", "--ignore-installed", "--target=unused"]
    if missing:
        options.append("--no-deps")  # pip would stop at the first missing dependency

    def requirements_in(texts: list[str]) -> list[Requirement]:
        requirements = [Requirement(text) for text in texts]
        return [
            requirement
            for requirement in requirements
            if (requirement.marker is None or requirement.marker.evaluate(environment))
            and canonicalize_name(requirement.name) not in missing
        ]

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    unmet = requirements_in(project["dependencies"])
    requirements: list[str] = []
    while unmet:
        requirements += [f"{requirement.name}{requirement.specifier}" for requirement in unmet]
        report = json.loads(install_with_pip(Path(sys.executable), *options, *requirements))["install"]
        wheels = {canonicalize_name(item["metadata"]["name"]): item for item in report}
        unmet = [
            requirement
            for item in report
            for requirement in requirements_in(item["metadata"].get("requires_dist", []))
            if (wheel := wheels.get(canonicalize_name(requirement.name))) is None
            or wheel["metadata"]["version"] not in requirement.specifier
        ]
    return {name: item["download_info"]["url"].rpartition("/")[2] for name, item in wheels.items()}


@pytest.fixture(scope="module")
def device_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The python of an environment with the base install only.

    The dependencies are cached between runs under the hash of pyproject.toml. The project is installed again
    in each run.
    """
    key = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + sys.version.encode()).hexdigest()[:12]
    base = Path(tempfile.gettempdir()) / f"edgefl-device-environment-{os.getuid()}-{key}"
    base.mkdir(mode=0o700, exist_ok=True)
    source = tmp_path_factory.mktemp("source")
    copy_project(source)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = base / "venv" / "bin" / "python"
        if not (base / "complete").exists():
            shutil.rmtree(base / "venv", ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(base / "venv")], check=True, timeout=120)
            install_with_pip(python, str(source))
            (base / "complete").touch()
        else:
            install_with_pip(python, "--no-deps", "--force-reinstall", str(source))
        yield python


def run_python(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # -P: Python must not find the checkout through the working directory
    return subprocess.run(
        [str(python), "-P", *arguments], capture_output=True, text=True, timeout=120, cwd=cwd
    )


@pytest.mark.slow
def test_the_base_install_is_small(device_python: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.metadata as m, importlib.util as u, json; "
        "print(json.dumps([[d.metadata['Name'].lower() for d in m.distributions()], [n for n in "
        "('tensorflow', 'keras', 'tf_keras', 'sklearn', 'amqtt', 'torch') if u.find_spec(n)]]))"
    )
    names, heavy = json.loads(run_python(device_python, "-c", code, cwd=tmp_path).stdout)
    assert heavy == []
    assert {"edgefl-tinyml", "numpy", "click", "paho-mqtt", "safetensors"} <= set(names)
    assert not [name for name in names if "tensorflow" in name]


@pytest.mark.parametrize(
    "python", ["3.11", *(pytest.param(version, marks=pytest.mark.slow) for version in ("3.12", "3.13"))]
)
def test_a_64_bit_board_installs_wheels(python: str) -> None:
    wheels = resolve_wheels("aarch64", python)
    assert {"ai-edge-litert", "ai-edge-quantizer", "cryptography", "numpy", "pynacl"} <= wheels.keys()
    assert {
        name for name, wheel in wheels.items() if "aarch64" not in wheel and "-any." not in wheel
    } == set()
    assert not wheels.keys() & {"keras", "scikit-learn", "tensorflow", "tflite-runtime"}


def test_a_32_bit_board_installs_wheels_and_needs_piwheels_for_two() -> None:
    wheels = resolve_wheels("armv7l", "3.11", ONLY_ON_PIWHEELS)
    assert {"cryptography", "safetensors", "tflite-runtime"} <= wheels.keys()
    assert {name for name, wheel in wheels.items() if "armv7l" not in wheel and "-any." not in wheel} == set()
    assert not wheels.keys() & {"ai-edge-litert", "ai-edge-quantizer", "pynacl", "scipy"}


def test_wheel_contains_only_the_packages(device_python: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps([str(path) for path in m.files('edgefl-tinyml')]))"
    )
    files = [Path(name) for name in json.loads(run_python(device_python, "-c", code, cwd=tmp_path).stdout)]
    installed = {path for path in files if path.parts[0] in PACKAGES and path.suffix == ".py"}
    files = {path.relative_to(ROOT) for top in PACKAGES for path in (ROOT / top).rglob("*.py")}
    assert installed == {path for path in files if path.parts[:2] != ("edgefl", "lab")}
    others = {path.parts[0] for path in files} - {*PACKAGES, ".."}  # "..": the command in bin/
    assert [name for name in others if not name.endswith(".dist-info")] == []


def test_error_names_the_missing_extra(device_python: Path, tmp_path: Path) -> None:
    built = run_python(
        device_python,
        "-m",
        "edgefl",
        "plan",
        "build",
        "--model",
        "lenet5",
        "--algorithm",
        "pfl-mfe",
        "-o",
        "plan",
        cwd=tmp_path,
    )
    assert built.returncode == 1
    assert "Traceback" not in built.stderr
    assert "[aggregator]" in built.stderr
    demo = run_python(device_python, "-m", "edgefl", "demo", cwd=tmp_path)
    assert demo.returncode == 1
    assert "[aggregator]" in demo.stderr


def test_a_device_without_tensorflow_joins_trains_personalizes_and_exports(
    device_python: Path, tmp_path: Path
) -> None:
    partition = PartitionConfig(name="dirichlet", num_clients=2, options={"alpha": 5.0, "min_samples": 20})
    shards = make_shards(subsample(load_dataset("digits"), 240, 120, 1), partition, 1)
    ids = ["pi-1", "pi-2"]
    for name, shard in zip(ids, shards.values(), strict=True):
        save_shard(tmp_path / f"{name}.npz", shard)
    config = tmp_path / "federation.toml"
    config.write_text(CONFIG)
    devices = Children(
        logs=tmp_path / "logs", echo=lambda line: None, command=(str(device_python), "-P", "-m", "edgefl")
    )
    with Children(logs=tmp_path / "logs", echo=lambda line: None) as services, devices:
        broker, lines = services.start("broker", "broker", "start", "--port", "0", "--json")
        url = json.loads(services.wait_for_line(broker, lines, "mqtt://", 30))["url"]
        aggregator, _ = services.start(
            "aggregator",
            "aggregator",
            "start",
            "--config",
            str(config),
            "--broker",
            url,
            "--out",
            str(tmp_path / "out"),
        )
        started = []
        for name in ids:
            options = ("--id", name, "--data", str(tmp_path / f"{name}.npz"), "--state", str(tmp_path / name))
            started.append(devices.start(name, "device", "start", "--broker", url, *options, "--json"))
        assert aggregator.process.wait(240) == 0, aggregator.read_log_tail()
        for child, _ in started:
            assert child.process.wait(60) == 0, child.read_log_tail()

    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [client["id"] for client in result["clients"]] == ids
    assert result["dropped"] == []
    for name in ids:
        end = json.loads((tmp_path / "logs" / f"{name}.log").read_text().splitlines()[-1])
        assert end["tensorflow_loaded"] is False
        assert (tmp_path / name / "mixture.safetensors").exists()
        model = tmp_path / name / "model" / "model.tflite"
        data = str(tmp_path / f"{name}.npz")
        again = run_python(
            device_python,
            "-m",
            "edgefl",
            "export",
            "--state",
            str(tmp_path / name),
            "-o",
            "again",
            cwd=tmp_path,
        )
        assert again.returncode == 0, again.stderr
        assert (tmp_path / "again" / "model.tflite").read_bytes() == model.read_bytes()
        inferred = run_python(
            device_python, "-m", "edgefl", "infer", str(model), "--data", data, "--json", cwd=tmp_path
        )
        assert inferred.returncode == 0, inferred.stderr
        assert np.isfinite(json.loads(inferred.stdout)["accuracy"])
