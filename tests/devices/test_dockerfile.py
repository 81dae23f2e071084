"""The device's Dockerfile, as far as it can be checked without docker: what it copies is there, what it
installs is the base.
"""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"edgefl", "devices", "mqtt_broker", "firmware_export"}


def instructions():
    text = (ROOT / "devices" / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def copied():
    lines = [words for name, words in instructions() if name == "COPY" and not words.startswith("--from")]
    return {source: line.split()[-1] for line in lines for source in line.split()[:-1]}


def test_what_it_copies_is_there_and_is_what_the_base_install_is_built_from():
    assert copied() == {
        **dict.fromkeys(("pyproject.toml", "README.md", "LICENSE"), "/src/"),
        **{package: f"/src/{package}" for package in PACKAGES},
    }
    for source in copied():
        assert (ROOT / source).exists()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {settings["project"]["readme"], *settings["project"]["license-files"]} <= copied().keys()
    packages = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in packages} == PACKAGES


def test_it_ignores_everything_else():
    lines = (ROOT / "devices" / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied().keys()


def test_it_installs_the_base_and_no_extra():
    pips = [
        command
        for name, words in instructions()
        if name == "RUN"
        for command in words.split(" && ")
        if command.startswith("pip ")
    ]
    assert [re.sub(r"\s+", " ", command).strip() for command in pips] == [
        "pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src",
        "pip install --no-cache-dir /wheels/*.whl",
    ]


def test_it_runs_as_nobody_in_particular_and_says_whether_it_is_well():
    told = dict(instructions())
    assert [words for name, words in instructions() if name == "FROM"] == [
        "python:3.11-slim AS build",
        "python:3.11-slim",
    ]
    assert told["USER"] == "10001"
    state = "/device/state"
    assert json.loads(told["ENTRYPOINT"]) == ["edgefl", "device", "start", "--state", state]
    assert json.loads(told["HEALTHCHECK"].partition("CMD ")[2]) == [
        "edgefl",
        "device",
        "status",
        "--state",
        state,
    ]
