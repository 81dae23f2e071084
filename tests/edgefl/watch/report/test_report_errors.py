"""Invalid and damaged folders, and a machine without matplotlib: one message with a remedy, exit code 1."""

import json
import re
import sys

import pytest

from edgefl.base.errors import StateError
from edgefl.cli.main import run_command as edgefl
from edgefl.simulation.runs.round_records import read_round_records
from edgefl.watch.report.folder import read_folder


@pytest.fixture
def get_error(capsys):
    """Return a function that runs `edgefl report`, expects exit code 1 and returns the error message."""

    def run(*arguments) -> str:
        assert edgefl(["report", *map(str, arguments)]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err
        return err.strip()

    return run


def test_folders_without_a_federation_are_refused(get_error, tmp_path, write_run):
    assert "is not a folder; give the --out of `edgefl simulate`" in get_error(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "contains neither run.json nor result.json" in get_error(tmp_path / "empty")
    write_run("one")
    assert re.search(
        r"is not a run but contains runs: one; give one of them, such as .*/one$", get_error(tmp_path)
    )
    assert "0 folders, expected one" in get_error()
    assert "2 folders, expected one" in get_error(tmp_path, tmp_path)


def test_damaged_folders_are_refused(get_error, write_run):
    folder = write_run(records=[{"round": 1, "loss": 1.0}], clients=[{"id": "a"}])
    for name, content, message in (
        ("run.json", "{", "cannot read"),
        ("run.json", "[]", "expected an object"),
        ("summary.json", '{"clients": [1]}', "not a list of rows"),
        ("rounds.jsonl", '{"round": "x"}\n', "damaged in line 1"),
        ("rounds.jsonl", "\0\n{}\n", "damaged in line 1"),
        ("clusters.json", '{"clients": []}', "clusters.json is damaged"),
        ("confusion.json", '{"a": [[1]]}', "is not a list of"),
        ("gates.json", '{"a": [[1, 2]]}', "the gates of a are not a list of"),
        ("gates.json", '{"a": [[1, 0, 0.5]]}', "are not a list of"),
        ("gates.json", '{"a": [[1, 2, 1], [2, 2, 0.5, 0.5]]}', "of several lengths"),
        ("gates.json", "[]", "expected an object"),
    ):
        before = (folder / name).read_text() if (folder / name).exists() else None
        (folder / name).write_text(content)
        assert message in get_error(folder)
        if before is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(before)
    assert edgefl(["report", str(folder)]) == 0
    assert (folder / "report.html").exists()


def test_any_values_in_the_records_give_a_page_or_an_error(write_run):
    """Records of another program never cause another kind of traceback."""
    from edgefl.watch.report.page import to_html

    strange = [
        None,
        "x",
        [],
        {},
        -1,
        1e308,
        True,
        [[1, 2], [3]],
        {"a": None},
        {"a": {"expert": "x", "q/0": None, "q/x": 1}},
    ]
    for i, value in enumerate(strange):
        record = {
            "round": 1,
            **dict.fromkeys(
                ("loss", "bytes_up", "bytes_down", "updates", "measured", "accuracy_mean", "phase"), value
            ),
        }
        inside = {
            "round": 2,
            "measured": dict.fromkeys(("clients", "models", "clusters", "divergence"), value),
        }
        clients = [
            {
                "id": "a",
                **dict.fromkeys(
                    ("accuracy_mixture", "cluster", "diagnostics", "accuracy_shipped_int8"), value
                ),
            }
        ]
        config = {
            "name": value,
            "algorithm": "fedavg",
            "model": value,
            "data": value,
            "partition": value,
            "options": value,
        }
        try:
            to_html(
                read_folder(
                    write_run(f"strange{i}", records=[record, inside], clients=clients, config=config)
                )
            )
        except StateError:
            continue


def test_an_incomplete_line_is_ignored_and_a_repeated_round_counts_once(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_text(
        '{"round": 2, "loss": 5}\n{"round": 1, "loss": 1}\n{"round": 2, "loss": 2}\n{"round": 3, '
        '"phase": "personalize"}\n{"round": 3, "lo'
    )
    assert [record["loss"] for record in read_round_records(path)] == [1, 2]


def test_missing_matplotlib_is_an_error(get_error, write_run, monkeypatch):
    folder = write_run(records=[{"round": 1, "loss": 1.0}])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert (
        "this command needs matplotlib, which this environment lacks; install the extra: pip install -e "
        "'.[plots]'" in get_error(folder)
    )
    assert not (folder / "report.html").exists()


def test_unwritable_output_file_is_an_error(get_error, write_run):
    folder = write_run(records=[{"round": 1, "loss": 1.0}])
    message = get_error(folder, "-o", folder / "run.json" / "x.html")
    assert re.search(r"cannot write .*run.json/x.html: .*; free some space, or give another -o", message)


def test_impossible_figures_are_refused(get_error, write_run):
    folder = write_run(config={"name": "hand", "algorithm": "fedavg"})
    assert "no figure 'aem-33'; did you mean 'aem-3'" in get_error("--figure", "aem-33", folder)
    assert "is a run of fedavg, but aem-3 needs runs of aem with several p" in get_error(
        "--figure", "aem-3", folder
    )
    assert "no folder given; aem-3 needs" in get_error("--figure", "aem-3")
    assert "ends in .gif, expected .svg, .png, .pdf" in get_error(
        "--figure", "fedmix-1", folder, "-o", "x.gif"
    )
    assert "has no gradient divergence" in get_error("--figure", "fedmix-1", folder)
    assert "has no layers.json; simulate with --layers-over 4" in get_error("--figure", "clustered-3", folder)
    assert "was not evaluated between rounds; simulate with --evaluate-every 1" in get_error(
        "--figure", "pfl-moe-2", folder
    )
    damaged = write_run(
        "damaged",
        layers=json.loads(
            '{"clients": ["a"], "epochs": [1], "compared": [[1, 2]], "layers": {}, "truth": [0], "dense": []}'
        ),
    )
    assert "layers.json is damaged" in get_error("--figure", "clustered-4", damaged)
