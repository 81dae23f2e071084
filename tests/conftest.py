"""Settings and fixtures of all tests: quiet TensorFlow, property tests with the same examples in every run,
and a second TFLite runtime.
"""

import fcntl
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from edgefl.simulation.runs import pipeline
from tests.support.debian_packages import format_command, list_missing
from tests.support.plans import make_cached_builder

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

settings.register_profile(
    "edgefl", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("edgefl")


def pytest_report_header() -> list[str]:
    """Return one line with the missing Debian packages, if any."""
    missing = list_missing()
    return [f"not installed: {', '.join(missing)}; the tests that need them are skipped"] if missing else []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the tests of real processes, which wait a lot, while other workers compute."""
    if not config.getoption("random_order_enabled", False):
        items.sort(key=lambda item: "mqtt_broker" not in item.path.parts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for each reason, and the command that installs missing packages."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
    if missing := list_missing():
        terminalreporter.write_line(f"install what the tests lack: {format_command(missing)}")


@pytest.fixture(autouse=True, scope="session")
def cached_plans(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build each plan of a run once, for all processes that run the tests.

    This is about the plans that `edgefl simulate` and other commands build in a process of their own, where
    it takes five seconds to load TensorFlow.
    """
    cache = getattr(request.config, "cache", None)
    directory = cache.mkdir("plans") if cache else tmp_path_factory.mktemp("plans")
    with pytest.MonkeyPatch.context() as patch:
        build = make_cached_builder(pipeline.build_plan_in_subprocess, directory)
        patch.setattr(pipeline, "build_plan_in_subprocess", build)
        yield


@pytest.fixture(scope="session")
def pip() -> Callable[..., None]:
    """A function that installs packages. It skips the test with pip's last line if pip fails."""

    def install(*arguments: str, python: str = sys.executable) -> None:
        command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(
                f"pip cannot install {arguments[-1]}: "
                f"{' '.join(done.stderr.strip().splitlines()[-1:]) or 'no reason given'}"
            )

    return install


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that hides a package from processes that are started later."""

    def hide(package: str) -> None:
        folder = tmp_path / "shadow" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise ImportError('not here')\n")
        monkeypatch.setenv(
            "PYTHONPATH",
            os.pathsep.join(filter(None, [str(folder.parent), os.environ.get("PYTHONPATH", "")])),
        )

    return hide


@pytest.fixture(scope="session")
def packages(request: pytest.FixtureRequest) -> Path:
    """A directory for the runtimes that the tests install. It remains after the run."""
    return Path(request.config.cache.mkdir("runtimes")).resolve()


@pytest.fixture(scope="session")
def lock_installation(packages: Path) -> Callable[[], AbstractContextManager[None]]:
    """A lock so that only one of several test processes installs into `packages`."""

    @contextmanager
    def locked() -> Iterator[None]:
        with (packages / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    return locked


@pytest.fixture(scope="session")
def other_python(
    packages: Path, pip: Callable[..., None], lock_installation: Callable[[], AbstractContextManager[None]]
) -> str:
    """The Python of an environment with tflite-runtime 2.14 and numpy 1, as on a 32-bit board."""
    if sys.version_info >= (3, 12):
        pytest.skip("tflite-runtime 2.14 ends at Python 3.11")
    home = packages / "tflite-runtime-2.14"
    python = str(home / "bin" / "python")
    with lock_installation():
        if not (home / "ready-2").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
            pip("numpy<2", "safetensors", "tflite-runtime==2.14.0", python=python)
            (home / "ready-2").touch()
    return python
