"""`edgefl export verify --serial` with boards in QEMU."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgefl.base.errors import ExportError
from firmware_export.certificate.board import make_board_report, verify_on_board
from firmware_export.certificate.golden import decode_golden, encode_golden
from firmware_export.commands.export import export
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.serial_link import BoardInfo, BoardRun
from firmware_export.firmware.targets import TARGETS
from tests.support.qemu_boards import run_selftest_in_qemu

pytest.importorskip("tflite_micro")
CORES = ("cortex-m4", "rv32imc")
INFO = BoardInfo(
    board="NUCLEO-L4R5ZI",
    model_sha256="ab" * 32,
    edgefl="0.3.0",
    compiler="12.2",
    input_bytes=490,
    output_bytes=2,
    counter="cycles",
    ticks_per_second=120_000_000,
)
CERTIFICATE = {
    "model": {"sha256": "ab" * 32},
    "target": "cortex-m4",
    "cost": [
        {"target": "cortex-m3", "instructions_mean": 1},
        {"target": "cortex-m4", "instructions_mean": 800_000},
    ],
}


def run_export(*arguments: object) -> Result:
    return CliRunner().invoke(export, [str(argument) for argument in arguments])


def make_dense_model(graphs, seed: int) -> bytes:
    """A dense layer of eight inputs and three outputs."""
    weights = np.random.default_rng(seed).integers(-128, 128, (3, 8)).astype(np.int8)
    tensors = [
        graphs.T((1, 8), 0.1, 3),
        graphs.T((3, 8), [0.01, 0.02, 0.015], 0, weights),
        graphs.T((3,), [0.001, 0.002, 0.0015], 0, np.array([10, -20, 30], np.int32)),
        graphs.T((1, 3), 0.2, -5),
    ]
    return graphs.make_tflite(tensors, [graphs.Op("FULLY_CONNECTED", (0, 1, 2), (3,), {}, "FullyConnected")])


@pytest.fixture(scope="module")
def folders(graphs, tmp_path_factory) -> dict[str, Path]:
    """An export for each core, of different models."""
    made = {}
    for seed, core in enumerate(CORES):
        if reason := explain_not_runnable(TARGETS[core]) or ("" if shutil.which("cmake") else "no CMake"):
            pytest.skip(reason)
        folder = tmp_path_factory.mktemp(core)
        (folder / "dense.tflite").write_bytes(make_dense_model(graphs, seed))
        options = ["-o", folder / "out", "--target", core, "--samples", 30]
        result = run_export(folder / "dense.tflite", *options)
        assert result.exit_code == 0, result.exception
        made[core] = folder / "out"
    return made


def test_report_has_the_time_and_the_cycles_per_instruction() -> None:
    """1.2 and 1.8 million cycles at 120 MHz are 10 and 15 ms; the mean is 1.875 cycles per instruction."""
    outputs = np.array([[1, 2], [3, 4]], np.int8)
    run = BoardRun(INFO, outputs, np.array([1_200_000, 1_800_000]))
    report = make_board_report(run, outputs + np.array([[0, 0], [0, 1]]), CERTIFICATE)
    assert report["milliseconds"] == {"mean": 12.5, "min": 10.0, "max": 15.0}
    assert report["cycles_per_instruction"] == 1.875 and report["instructions_of_qemu"] == 800_000
    assert report["different_samples"] == 1 and report["samples"] == 2
    assert report["board"] == "NUCLEO-L4R5ZI"
    assert make_board_report(run, outputs, CERTIFICATE, "mine")["board"] == "mine"


def test_report_without_a_cycle_counter_has_no_cycles() -> None:
    info = BoardInfo(
        board="a board",
        model_sha256="ab" * 32,
        edgefl="0.3.0",
        compiler="12.2",
        input_bytes=490,
        output_bytes=2,
        counter="microseconds",
        ticks_per_second=1_000_000,
    )
    outputs = np.array([[1, 2]], np.int8)
    report = make_board_report(BoardRun(info, outputs, np.array([2500])), outputs, CERTIFICATE)
    assert report["milliseconds"]["mean"] == 2.5 and report["cycles_per_instruction"] is None


@pytest.mark.parametrize("core", CORES)
def test_board_gives_the_golden_outputs(core: str, folders: dict[str, Path], tmp_path: Path) -> None:
    target = TARGETS[core]
    report_file = tmp_path / "report.json"
    with run_selftest_in_qemu(folders[core] / "firmware", target) as port:
        result = run_export("verify", folders[core], "--serial", port, "--report", report_file)
        assert result.exit_code == 0, result.exception
        other = folders[CORES[core == CORES[0]]]
        refused = run_export("verify", other, "--serial", port, "--report", tmp_path / "other.json")
    assert f"ok           QEMU {target.machine} runs model.tflite" in result.stdout
    assert "20 golden inputs, every output byte the same" in result.stdout
    assert "warning      QEMU counts instructions, so its time is not the time of a board" in result.stdout
    report = json.loads(report_file.read_text())
    assert report["samples"] == 20 and report["different_samples"] == 0
    instructions = report["ticks"]["mean"] * float(target.tick)
    assert instructions == pytest.approx(report["instructions_of_qemu"], rel=0.1, abs=100)
    golden = decode_golden((folders[core] / "golden.npz").read_bytes())
    text = report_file.read_text()
    assert str(golden.inputs[0].tolist())[1:-1] not in text and "inputs" not in report
    assert "the board runs another model" in str(refused.exception)
    assert not (tmp_path / "other.json").exists()


def test_other_outputs_are_an_error_with_a_report(folders: dict[str, Path], tmp_path: Path) -> None:
    """The folder's golden outputs are changed, as if the board had computed others."""
    out = Path(
        shutil.copytree(folders["cortex-m4"], tmp_path / "out", ignore=shutil.ignore_patterns("build"))
    )
    golden = decode_golden((out / "golden.npz").read_bytes())
    golden.outputs[3, 1] ^= 1
    (out / "golden.npz").write_bytes(encode_golden(golden))
    with run_selftest_in_qemu(out / "firmware", TARGETS["cortex-m4"]) as port:
        damaged = run_export("verify", out, "--serial", port)
        assert "golden.npz is not the exported file" in str(damaged.exception)
        certificate = json.loads((out / "certificate.json").read_text())
        found = str(damaged.exception).split("sha256 ")[1].split(",")[0]
        certificate["files"]["golden.npz"] = found
        (out / "certificate.json").write_text(json.dumps(certificate))
        result = run_export("verify", out, "--serial", port)
    assert isinstance(result.exception, ExportError)
    assert "differs from the expected outputs in 1 of 20 samples, first in sample 3, output 1" in str(
        result.exception
    )
    assert json.loads((out / "board.json").read_text())["different_samples"] == 1


class Untouched:
    """A port that no byte reaches."""

    def read(self, size: int) -> bytes:
        raise AssertionError(size)

    def write(self, data: bytes) -> None:
        raise AssertionError(data)


@pytest.mark.parametrize("damage", [{"model": {}}, {"cost": [{"target": "cortex-m4"}]}, {"cost": 3}])
def test_damaged_certificate_is_an_error_before_the_measurement(
    damage: dict[str, object], folders: dict[str, Path], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(folders["cortex-m4"], tmp_path / "out"))
    certificate = json.loads((out / "certificate.json").read_text())
    (out / "certificate.json").write_text(json.dumps(certificate | damage))
    with pytest.raises(ExportError, match=r"certificate.json is damaged.*export again"):
        verify_on_board(out, Untouched(), 3, tmp_path / "report.json")


@pytest.mark.parametrize("name", ["certificate.json", "model.tflite", "c", "firmware/../c/model.h"])
def test_report_does_not_overwrite_the_export(name: str, folders: dict[str, Path]) -> None:
    out = folders["cortex-m4"]
    with pytest.raises(ExportError, match="pass another --report"):
        verify_on_board(out, Untouched(), 3, out / name)


def test_board_with_other_sizes_is_refused(folders: dict[str, Path], tmp_path: Path, monkeypatch) -> None:
    out = folders["cortex-m4"]
    digest = json.loads((out / "certificate.json").read_text())["model"]["sha256"]
    info = BoardInfo(
        board="a board",
        model_sha256=digest,
        edgefl="0.3.0",
        compiler="12.2",
        input_bytes=8,
        output_bytes=2,
        counter="cycles",
        ticks_per_second=1,
    )
    monkeypatch.setattr("firmware_export.certificate.board.connect_board", lambda port, size: info)
    with pytest.raises(ExportError, match="takes 8 bytes and gives 2, expected 8 and 3"):
        verify_on_board(out, Untouched(), 3, tmp_path / "report.json")


def test_folder_without_a_certificate_is_refused(tmp_path: Path) -> None:
    result = run_export("verify", tmp_path, "--serial", "loop://")
    assert "certificate.json cannot be read" in str(result.exception)
    assert "edgefl export --target" in str(result.exception)


@pytest.mark.parametrize("option", ["--samples", "--baud", "--board", "--report"])
def test_options_of_a_board_need_the_port(option: str, tmp_path: Path) -> None:
    result = run_export("verify", tmp_path, option, "5")
    assert result.exit_code == 2 and f"{option} needs --serial PORT" in result.output
