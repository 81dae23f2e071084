"""A real mixture's certificate: all targets agree, `verify` finds changes, and budgets name the layer."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from edgefl.base.errors import ExportError
from firmware_export.certificate import bundle as bundle_module
from firmware_export.certificate import parity
from firmware_export.certificate.budget import Budget
from firmware_export.certificate.bundle import write_bundle
from firmware_export.certificate.certificate import ExportRequest, make_certificate
from firmware_export.certificate.golden import choose_golden_samples, decode_golden
from firmware_export.certificate.verify import profile_bundle
from firmware_export.codegen.c_source import generate_c
from firmware_export.commands.certificate import describe_certificate

pytest.importorskip("tflite_micro")
SAMPLES = 30


@pytest.fixture
def few_targets(monkeypatch) -> None:
    """Run only the host and one core. Most tests need no other target."""
    monkeypatch.setattr(
        bundle_module, "make_certificate", partial(make_certificate, target_names=("host", "cortex-m4"))
    )


def read_certificate(out: Path) -> dict:
    return json.loads((out / "certificate.json").read_text())


def test_every_target_gives_the_same_bytes(bundle) -> None:
    certificate = read_certificate(bundle)
    status = {row["place"]: (row["status"], row["samples"]) for row in certificate["parity"]}
    for name in ("tflite-micro", "host", "cortex-m3", "cortex-m4", "cortex-m7"):
        assert status[name] == ("equal", SAMPLES), name
    digests = {row["outputs_sha256"] for row in certificate["parity"] if row["samples"] == SAMPLES}
    assert digests == {certificate["golden"]["outputs_sha256"]}
    golden = decode_golden((bundle / "golden.npz").read_bytes())
    assert sha256(golden.outputs.tobytes()).hexdigest() in digests
    assert certificate["accuracy"]["accuracy_int8"] == float(
        (golden.outputs.argmax(axis=1) == golden.y).mean()
    )
    assert sum(row["samples"] for row in certificate["accuracy"]["by_class"]) == SAMPLES
    cost = {row["target"]: row for row in certificate["cost"]}
    assert (
        cost["cortex-m4"]["instructions_mean"]
        < cost["cortex-m3"]["instructions_mean"]
        < cost["cortex-m0"]["instructions_mean"]
    )
    assert cost["cortex-m4"]["flash_bytes"] > sum(layer["weight_bytes"] for layer in certificate["layers"])
    counted = sum(layer["instructions"] for layer in certificate["layers"])
    assert counted == pytest.approx(cost["cortex-m4"]["instructions_mean"], rel=0.05)


def test_bundle_contains_exactly_the_certified_files(bundle) -> None:
    certificate = read_certificate(bundle)
    present = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()}
    assert present == {*certificate["files"], "certificate.json"}
    assert {
        "c/model.c",
        "tflm/model_ops.h",
        "firmware/CMakeLists.txt",
        "report.html",
        "golden.npz",
        "model.tflite",
    } <= present
    page = (bundle / "report.html").read_text()
    assert not re.search(r"(src|href)=|https?:", page), "the page needs no other file"
    assert all(layer["name"] in page for layer in certificate["layers"])
    mean = next(row["instructions_mean"] for row in certificate["cost"] if row["target"] == "cortex-m4")
    assert f'<td class="number">{mean / 100e3:.2f}</td>' in page, "milliseconds at 100 MHz"
    assert "Nothing was run on these boards" in page and "NUCLEO-L4R5ZI" in page


def test_boards_are_estimated_from_the_instructions_of_their_core(bundle) -> None:
    certificate = read_certificate(bundle)
    mean = {row["target"]: row["instructions_mean"] for row in certificate["cost"]}
    estimates = certificate["estimates"]
    assert [row["board"] for row in estimates] == ["NUCLEO-L4R5ZI", "nRF5340 DK", "EK-RA6M4"]
    assert all(row["instructions"] == mean[row["target"]] for row in estimates)
    nucleo = estimates[0]
    assert nucleo["ms_low"] == pytest.approx(mean["cortex-m4"] * 1.38 / 120_000, abs=6e-4)
    assert nucleo["ms_high"] == pytest.approx(mean["cortex-m4"] * 1.72 / 120_000, abs=6e-4)
    lines = describe_certificate(certificate, bundle).splitlines()
    boards = [line for line in lines if "nothing was run on this board" in line]
    assert len(boards) == 1 and boards[0].startswith("NUCLEO-L4R5ZI at 120 MHz: ")


def test_each_program_is_compiled_once_and_tflite_micro_started_once(copy, few_targets, monkeypatch) -> None:
    """The profile of the export's target compiles two sources again."""
    commands = []
    run = subprocess.run

    def record(command, *arguments, **options):
        commands.append(" ".join(command))
        return run(command, *arguments, **options)

    monkeypatch.setattr(subprocess, "run", record)
    before = read_certificate(copy)
    golden = decode_golden((copy / "golden.npz").read_bytes())
    request = ExportRequest(target="cortex-m4", budget=Budget(64 << 10, 256 << 10))
    finished = []
    after = write_bundle(copy, golden.x, golden.y, request, progress=lambda *counts: finished.append(counts))
    assert finished == [(1, 2), (2, 2)]
    assert sum("tflm_runner" in command for command in commands) == 1
    compiled = re.findall(r"-c (?:model/)?(\w+)\.c$", "\n".join(commands), re.MULTILINE)
    assert sorted(compiled) == sorted(
        ["model", "model_weights", "main"] * 2 + ["host", "semihosting", "startup"] + ["model", "main"]
    )
    assert after["layers"] == before["layers"] and after["tflm"] == before["tflm"]


def test_one_different_output_byte_is_an_error(bundle, monkeypatch) -> None:
    model, model_float = ((bundle / name).read_bytes() for name in ("model.tflite", "model_float.tflite"))
    golden = decode_golden((bundle / "golden.npz").read_bytes())
    outputs = golden.outputs.copy()
    outputs[7, 2] ^= 1
    source = generate_c(model)
    with pytest.raises(ExportError, match=r"host differs .* in 1 of 30 samples, first in sample 7"):
        make_certificate(
            model,
            model_float,
            source,
            replace(golden, outputs=outputs),
            ExportRequest(target="host", budget=Budget()),
            ["host"],
        )


@pytest.mark.parametrize(
    ("budget", "texts"),
    [
        (Budget(flash_bytes=100_000), ("flash", "fc1", "at most 100,000")),
        (Budget(ram_bytes=1024), ("RAM", "conv1", "--optimize ram")),
        (Budget(instructions=1000), ("instructions on", "at most 1,000", "--members")),
    ],
)
def test_an_exceeded_budget_names_layers_and_three_remedies(bundle, budget, texts) -> None:
    model, model_float = ((bundle / name).read_bytes() for name in ("model.tflite", "model_float.tflite"))
    golden = decode_golden((bundle / "golden.npz").read_bytes())
    with pytest.raises(ExportError) as caught:
        make_certificate(
            model,
            model_float,
            generate_c(model),
            golden,
            ExportRequest(target="cortex-m4", budget=budget),
            ["cortex-m4"],
        )
    assert all(text in str(caught.value) for text in (*texts, "too many", "  1. ", "  2. ", "  3. "))


def test_second_export_removes_the_files_of_the_first(copy, digits, few_targets) -> None:
    write_bundle(
        copy, *choose_golden_samples(digits.shard, 5, 1), ExportRequest(target="host", budget=Budget())
    )
    present = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert present == {*read_certificate(copy)["files"], "certificate.json"}
    assert "firmware/host.c" in present and "firmware/startup.c" not in present
    written = present - {"model.tflite", "model_float.tflite", "report.json"}
    public = {name for name in written if (copy / name).stat().st_mode & 0o777 != 0o600}
    assert public == {"report.html", "certificate.json"}, "the C contains the weights"


def test_an_export_that_fails_leaves_no_certificate(copy, digits, monkeypatch, few_targets) -> None:
    def wrong(name, expected, received):
        raise ExportError(f"{name} differs")

    monkeypatch.setattr(parity, "check_outputs", wrong)
    with pytest.raises(ExportError, match="differs"):
        write_bundle(
            copy, *choose_golden_samples(digits.shard, 5, 1), ExportRequest(target="host", budget=Budget())
        )
    assert not (copy / "certificate.json").exists()


def test_a_folder_that_cannot_be_written_is_an_error(copy, digits, monkeypatch, few_targets) -> None:
    def full(path, content, *mode):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("firmware_export.certificate.bundle.write_atomic", full)
    with pytest.raises(ExportError, match=r"No space left on device.*another directory"):
        write_bundle(
            copy, *choose_golden_samples(digits.shard, 5, 1), ExportRequest(target="host", budget=Budget())
        )
    assert not (copy / "certificate.json").exists()


def test_profile_divides_instructions_among_layers(bundle) -> None:
    target, layers, budget = profile_bundle(bundle, "cortex-m3")
    assert target == "cortex-m3"
    assert budget == {"ram_bytes": 64 << 10, "flash_bytes": 256 << 10, "instructions": 0}
    certificate = read_certificate(bundle)
    cost = next(row for row in certificate["cost"] if row["target"] == "cortex-m3")
    assert sum(layer.instructions for layer in layers) == pytest.approx(cost["instructions_mean"], rel=0.05)
    assert max(layers, key=lambda layer: layer.instructions).name.startswith("conv")
    with pytest.raises(ExportError, match="target is host"):
        profile_bundle(bundle, "host")


def test_a_skip_threshold_reports_its_cost(bundle, digits, tmp_path, few_targets) -> None:
    for name in ("model.tflite", "model_float.tflite", "report.json"):
        shutil.copy(bundle / name, tmp_path / name)
    certificate = write_bundle(
        tmp_path,
        *choose_golden_samples(digits.shard, SAMPLES, 1),
        ExportRequest(target="cortex-m4", budget=Budget(), threshold=0.4),
    )
    cost = next(row for row in certificate["cost"] if row["target"] == "cortex-m4")
    skipping = certificate["skipping"]
    assert cost["instructions_mean"] <= skipping["instructions_all_run"]
    assert 0 <= skipping["agreement"] <= 1
    assert skipping["outputs_sha256"] and certificate["parity"][0]["status"] == "equal"


def test_compiled_c_array_equals_the_model_file(bundle, tmp_path) -> None:
    program = (
        '#include "model_data.h"\n#include <stdio.h>\nint main(void) { return fwrite(model_data, 1, '
        "model_data_bytes, stdout) == 0; }\n"
    )
    (tmp_path / "main.c").write_text(program)
    command = [
        "cc",
        "-Wall",
        "-Werror",
        f"-I{bundle / 'tflm'}",
        "main.c",
        str(bundle / "tflm" / "model_data.c"),
        "-o",
        "show",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    shown = subprocess.run([tmp_path / "show"], capture_output=True, check=True, timeout=60).stdout
    assert shown == (bundle / "model.tflite").read_bytes()
