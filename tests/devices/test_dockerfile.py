"""The device's Dockerfile, as far as it can be checked without docker: it copies files that exist and
installs the base without extras.
"""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"edgefl", "devices", "mqtt_broker", "firmware_export"}


def list_instructions():
    text = (ROOT / "devices" / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def list_copied_paths():
    lines = [
        arguments
        for name, arguments in list_instructions()
        if name == "COPY" and not arguments.startswith("--from")
    ]
    return {source: line.split()[-1] for line in lines for source in line.split()[:-1]}


def test_dockerfile_copies_the_sources_of_the_base_install():
    assert list_copied_paths() == {
        **dict.fromkeys(("pyproject.toml", "README.md", "LICENSE"), "/src/"),
        **{package: f"/src/{package}" for package in PACKAGES},
    }
    for source in list_copied_paths():
        assert (ROOT / source).exists()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {
        settings["project"]["readme"],
        *settings["project"]["license-files"],
    } <= list_copied_paths().keys()
    packages = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in packages} == PACKAGES


def test_dockerignore_excludes_everything_that_is_not_copied():
    lines = (ROOT / "devices" / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == list_copied_paths().keys()


def test_dockerfile_installs_the_base_without_extras():
    pip_commands = [
        command
        for name, arguments in list_instructions()
        if name == "RUN"
        for command in arguments.split(" && ")
        if command.startswith("pip ")
    ]
    assert [re.sub(r"\s+", " ", command).strip() for command in pip_commands] == [
        "pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src",
        "pip install --no-cache-dir /wheels/*.whl",
    ]


def test_dockerfile_sets_unprivileged_user_and_health_check():
    instructions = dict(list_instructions())
    assert [arguments for name, arguments in list_instructions() if name == "FROM"] == [
        "python:3.11-slim AS build",
        "python:3.11-slim",
    ]
    assert instructions["USER"] == "10001"
    state = "/device/state"
    assert json.loads(instructions["ENTRYPOINT"]) == ["edgefl", "device", "start", "--state", state]
    assert json.loads(instructions["HEALTHCHECK"].partition("CMD ")[2]) == [
        "edgefl",
        "device",
        "status",
        "--state",
        state,
    ]
