"""Directories of another version of edgefl are refused with one error."""

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devices.detector import read_owner
from devices.store import DeviceStore
from edgefl.base.config import FederationConfig
from edgefl.base.errors import StateError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.device_directory import DeviceFiles, decode_note, encode_note
from edgefl.base.storage.directory import STATE_FORMAT, check_state_format
from edgefl.simulation.runs.directory import RunDirectory
from firmware_export.quantize.device_state import read_state
from mqtt_broker.aggregator.journal import FederationStart, Journal

OTHER_VERSION = r"was written by another version of edgefl: its format is .*, expected 2; continue with"


@pytest.mark.parametrize("found", [None, 0, 1, STATE_FORMAT + 1, str(STATE_FORMAT), True, [STATE_FORMAT]])
def test_only_the_own_format_is_accepted(found: object) -> None:
    check_state_format(STATE_FORMAT, "file", "pass another --out")
    with pytest.raises(StateError, match=f"^file {OTHER_VERSION} the .* or pass another --out$"):
        check_state_format(found, "file", "pass another --out")


@pytest.mark.parametrize("version", [0, STATE_FORMAT + 1])
def test_journal_of_another_version_is_refused(version: int, tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.start(FederationStart(session="s", settings="{}", started=0.0))
    with Journal(tmp_path) as journal:
        assert journal.read_start() == FederationStart(session="s", settings="{}", started=0.0)
    with closing(sqlite3.connect(AggregatorFiles(tmp_path).journal)) as database:
        database.execute(f"pragma user_version={version}")
    with pytest.raises(StateError, match=rf"journal\.sqlite {OTHER_VERSION}"):
        Journal(tmp_path)


def test_device_state_of_another_version_is_refused(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path, "pi-1")
    assert store.read_note() == {}
    store.save_note({"id": "pi-1"})
    store.close()
    path = DeviceFiles(tmp_path).note
    assert decode_note(path.read_bytes()) == {"id": "pi-1"}
    path.write_text('{"id": "pi-1"}')
    with pytest.raises(StateError, match=rf"device\.json {OTHER_VERSION} .* another --state"):
        DeviceStore(tmp_path, "pi-1")
    path.write_bytes(encode_note({"id": "pi-1"}).replace(b"pi-1", b"pi-2"))
    damaged = DeviceStore(tmp_path, "pi-1")
    assert damaged.read_note() == {}, "a damaged note is written again"
    damaged.close()


def test_export_and_detector_refuse_a_device_state_of_another_version(tmp_path: Path) -> None:
    path = DeviceFiles(tmp_path).note
    content = {"id": "pi-1", "seed": 1, "data": "x.npz", "format": STATE_FORMAT + 1}
    for note in (content, {**content, "sha256": hash_note(content)}):
        path.write_text(json.dumps(note))
        for read in (read_state, read_owner):
            with pytest.raises(StateError, match=rf"device\.json {OTHER_VERSION} .* another --state"):
                read(tmp_path)


def hash_note(note: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize("found", [None, STATE_FORMAT + 1])
def test_run_of_another_version_is_not_resumed(found: int | None, tmp_path: Path) -> None:
    config = FederationConfig(name="f")
    path = RunDirectory(tmp_path / "run", config, "edgefl simulate", resume=False).files.note
    RunDirectory(tmp_path / "run", config, "edgefl simulate", resume=True)
    note = json.loads(path.read_text())
    assert note.pop("format") == STATE_FORMAT
    path.write_text(json.dumps(note if found is None else {**note, "format": found}))
    with pytest.raises(StateError, match=rf"run\.json {OTHER_VERSION}"):
        RunDirectory(tmp_path / "run", config, "edgefl simulate", resume=True)
