"""The sdist and the wheel: metadata, content, and a new environment that runs the wheel."""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from edgefl import __version__
from tests.support.project_copy import copy_project
from tests.support.rooms import PACKAGES, ROOT

LIMIT_S = 120
# Dockerfiles, the compose example and research are only in a clone.
ONLY_IN_A_CLONE = ("*/Dockerfile*", "mqtt_broker/compose/*", "edgefl/lab/reproduce/papers/*")
IMPORTS = """
import importlib, sys
for package in sys.argv[1:]:
    print(importlib.import_module(package).__file__)
"""


class Distributions(NamedTuple):
    source: Path
    sdist: Path
    wheel: Path
    wheel_of_sdist: Path


def run(*command: str | Path, cwd: Path, exit_status: int = 0) -> str:
    """Run a command without the checkout on its Python path, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [str(argument) for argument in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == exit_status, ran.stdout + ran.stderr
    return ran.stderr if exit_status else ran.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build the sdist, a wheel from it, and a wheel from the source tree."""
    folder = tmp_path_factory.mktemp("distribution")
    source = folder / "source"
    source.mkdir()
    copy_project(source)
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir")
    run(*build, folder / "both", source, cwd=folder)
    run(*build, folder / "direct", "--wheel", source, cwd=folder)
    (sdist,) = (folder / "both").glob("*.tar.gz")
    (wheel_of_sdist,) = (folder / "both").glob("*.whl")
    (wheel,) = (folder / "direct").glob("*.whl")
    return Distributions(source, sdist, wheel, wheel_of_sdist)


def compute_digests(wheel: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


@pytest.mark.slow
def test_twine_accepts_sdist_and_wheel(built: Distributions, tmp_path: Path) -> None:
    output = run(sys.executable, "-m", "twine", "check", "--strict", built.sdist, built.wheel, cwd=tmp_path)
    assert output.count("PASSED") == 2


def test_the_sdist_builds_the_same_wheel(built: Distributions) -> None:
    assert compute_digests(built.wheel_of_sdist) == compute_digests(built.wheel)


def test_the_wheel_holds_the_data_of_the_packages(built: Distributions) -> None:
    files = [path.relative_to(built.source) for top in PACKAGES for path in (built.source / top).rglob("*")]
    data = {
        path.as_posix()
        for path in files
        if (built.source / path).is_file()
        and path.suffix not in {".py", ".pyc"}
        and not any(path.match(pattern) for pattern in ONLY_IN_A_CLONE)
    }
    assert {
        "edgefl/py.typed",
        "edgefl/watch/dashboard/page/index.html",
        "edgefl/watch/dashboard/page/vendor/uplot-1.6.32/LICENSE",
        "edgefl/watch/report/page.css",
        "mqtt_broker/broker/clusters/nats.conf",
        "mqtt_broker/integrations/examples/telegraf/telegraf.conf",
        "firmware_export/templates/project/CMakeLists.txt.in",
        "firmware_export/templates/ota/ota.c",
    } <= data
    assert data - compute_digests(built.wheel).keys() == set()


def test_the_wheel_holds_the_packages_and_no_tests(built: Distributions) -> None:
    names = compute_digests(built.wheel).keys()
    metadata = f"edgefl_tinyml-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, metadata}
    assert [name for name in names if re.search(r"(^|/)(tests?/|test_|conftest)", name)] == []
    assert [name for name in names if name.startswith("edgefl/lab/")] == []


def test_the_sdist_holds_the_changelog_and_no_tests(built: Distributions) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"} <= names
    assert [name for name in names if name.startswith("tests")] == []


def test_a_new_environment_runs_the_wheel(built: Distributions, tmp_path: Path) -> None:
    """The new environment uses the dependencies of the environment that runs the tests.

    tests/test_device_environment.py tests the installation of the dependencies.
    """
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, built.wheel, cwd=tmp_path)
    command = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(python, "-c", command, cwd=tmp_path).strip())
    # Python does not read .pth files in folders that a .pth file adds, so the editable install stays out.
    dependencies = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))

    edgefl = environment / "bin" / "edgefl"
    assert run(edgefl, "--version", cwd=tmp_path) == f"edgefl, version {__version__}\n"
    assert "--broker" in run(edgefl, "device", "start", "--help", cwd=tmp_path)
    for arguments in (["reproduce", "--list"], ["report", "--list"], ["bench", "wire"]):
        error = run(edgefl, *arguments, cwd=tmp_path, exit_status=1)
        assert error.startswith("edgefl: this is for research") and "make install" in error
    help_text = run(edgefl, "--help", cwd=tmp_path)
    assert "reproduce" in help_text and "not available" not in help_text
    imported = run(python, "-c", IMPORTS, *PACKAGES, cwd=tmp_path).splitlines()
    assert imported == [str(packages / package / "__init__.py") for package in PACKAGES]


def test_the_changelog_has_the_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(__version__)} - \d{{4}}-\d\d-\d\d", headings[1])
