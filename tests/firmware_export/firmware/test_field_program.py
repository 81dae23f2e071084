"""Updates and drift counters of a real mixture, with the commands and the project's field program."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgefl.base.errors import ExportError
from edgefl.base.types import Shard
from firmware_export.certificate.golden import encode_golden, make_golden
from firmware_export.certificate.tflm_runner import run_tflm
from firmware_export.codegen.c_source import generate_c
from firmware_export.commands import export
from firmware_export.firmware.field_program import UpdateSettings
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.project import make_project_files
from firmware_export.firmware.targets import TARGETS, Target
from firmware_export.ota.drift import read_counters
from firmware_export.ota.gate_usage import count_gate_usage, run_gate
from firmware_export.ota.signing_key import read_public_key, read_signer
from firmware_export.quantize.quantize import export_mixture

pytest.importorskip("tflite_micro")
SAMPLES = 60


def run_export(*arguments: Any) -> Result:
    return CliRunner().invoke(export, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "updates"
    assert run_export("key", path).exit_code == 0
    return path


@pytest.fixture(
    scope="module",
    params=["cortex-m4", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lx106", "host"))],
)
def exported(
    request: Any, mixture_of: Callable[..., Any], key: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The export of a mixture, and an export after more training of its personal classifier."""
    if reason := explain_not_runnable(TARGETS[request.param]):
        pytest.skip(reason)
    made = mixture_of("pfl-mfe", "fashion-mnist")
    home = tmp_path_factory.mktemp(request.param)
    trusted = base64.b64encode(read_public_key(key.with_name("updates.pub"))).decode()
    rng = np.random.default_rng(1)
    moved = {
        name: value
        + rng.normal(0, 0.003, value.shape).astype(np.float32) * (".fc" in name or "local" in name)
        for name, value in made.mixture.weights.items()
    }
    for name, weights in (("old", made.mixture.weights), ("new", moved)):
        export_mixture(
            made.plan, replace(made.mixture, weights=weights), made.shard, home / name, client_id="pi-1"
        )
        write_project(home / name, made.shard, TARGETS[request.param], trusted)
    return home / "old", home / "new"


def write_project(out: Path, shard: Shard, target: Target, trusted: str) -> None:
    """Write golden.npz and firmware/ next to model.tflite.

    An export with --target and --update-key writes the same files.
    """
    model = (out / "model.tflite").read_bytes()
    golden = make_golden(model, shard.x_test[:SAMPLES], shard.y_test[:SAMPLES])
    (out / "golden.npz").write_bytes(encode_golden(golden))
    source = generate_c(model)
    for name, text in make_project_files(
        source.files, target, UpdateSettings(trusted, source.part_bytes, "pi-1")
    ).items():
        (out / "firmware" / name).parent.mkdir(parents=True, exist_ok=True)
        (out / "firmware" / name).write_text(text)
    (out / "firmware/samples.bin").write_bytes(golden.inputs[:10].tobytes())


def run_field_program(project: Path) -> str:
    """Build and run the field program with the commands of the README.

    A host prints on standard output, QEMU on standard error.
    """
    for arguments in (["-B", "build"], ["--build", "build", "--target", "field"]):
        done = subprocess.run(["cmake", *arguments], cwd=project, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def test_signed_update_changes_the_outputs_of_the_firmware(
    exported: tuple[Path, Path], key: Path, tmp_path: Path
) -> None:
    old, new = exported
    update = tmp_path / "update.bin"
    result = run_export("update", old, new, "--key", key, "-o", update)
    assert result.exit_code == 0, result.output
    assert json.loads((new / "update.json").read_text()) == {"counter": 1}
    project = tmp_path / "firmware"
    shutil.copytree(old / "firmware", project)
    inputs = np.load(new / "golden.npz")["inputs"]
    (project / "samples.bin").write_bytes(inputs.tobytes())
    before, after = (
        run_tflm((folder / "model.tflite").read_bytes(), inputs).tobytes() for folder in (old, new)
    )
    assert before != after
    assert "running update 0" in run_field_program(project)
    assert (project / "outputs.bin").read_bytes() == before
    shutil.copy(update, project)
    output = run_field_program(project)
    assert "update.bin: done" in output
    assert (project / "outputs.bin").read_bytes() == after
    output = run_field_program(project)
    assert "running update 1, highest counter 1\nupdate.bin: old counter\nrunning update 1" in output
    content = bytearray(update.read_bytes())
    content[9] ^= 1
    (project / "update.bin").write_bytes(content)
    assert "update.bin: bad signature" in run_field_program(project)
    assert (project / "outputs.bin").read_bytes() == after
    counted = read_counters((project / "counters.bin").read_bytes())
    expected = count_gate_usage(run_gate((new / "model.tflite").read_bytes(), inputs))
    assert counted.inferences == len(inputs)
    assert counted.shares == pytest.approx(expected.shares, abs=0.02)


@pytest.mark.parametrize("has_state", [False, True])
def test_update_of_a_plain_model_streams_only_its_head(
    graphs: Any, random_models: Any, key: Path, tmp_path: Path, *, has_state: bool
) -> None:
    """The field program reads the update in pieces of 64 bytes, which end within words and parts.

    After the self-test a model with a state begins a new sequence.
    """
    if reason := explain_not_runnable(TARGETS["cortex-m4"]):
        pytest.skip(reason)
    trusted = base64.b64encode(read_public_key(key.with_name("updates.pub"))).decode()
    inputs = np.random.default_rng(0).integers(-128, 128, (9, 8, 8, 2)).astype(np.int8)
    outputs = []
    for name in ("old", "new"):
        made = random_models.Graph(graphs, np.random.default_rng(1))
        tip = made.add_tensor((1, 8, 8, 2), 0.05, 0)
        if has_state:
            made.operators.append(
                graphs.Op(
                    name="CALL_ONCE",
                    inputs=(),
                    outputs=(),
                    options={"initSubgraphIndex": 1},
                    options_class="CallOnce",
                )
            )
            tip = made.add_stream(tip)
        features = made.flatten(made.add_convolution(tip))
        made.rng = np.random.default_rng(len(outputs))
        made.add_dense(features, 5)
        model = graphs.make_tflite(made.tensors, made.operators, initial=made.initial if has_state else None)
        source = generate_c(model)
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.tflite").write_bytes(model)
        outputs.append(run_tflm(model, inputs).tobytes())
        for file, text in make_project_files(
            source.files, TARGETS["cortex-m4"], UpdateSettings(trusted, source.part_bytes)
        ).items():
            (tmp_path / name / "firmware" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "firmware" / file).write_text(text)
    project = tmp_path / "old/firmware"
    (project / "samples.bin").write_bytes(inputs.tobytes())
    run_field_program(project)
    assert (project / "outputs.bin").read_bytes() == outputs[0] != outputs[1]
    result = run_export(
        *("update", tmp_path / "old", tmp_path / "new", "--key", key, "-o", project / "update.bin"),
        *("--all-devices", "--json"),
    )
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    assert summary["parts"] == ["trunk", "head"] and summary["carries"] == ["head"]
    assert summary["bytes"] == 120 + 2 * 40 + 64 + source.part_bytes[1]
    assert "update.bin: done\nrunning update 1" in run_field_program(project)
    assert (project / "outputs.bin").read_bytes() == outputs[1]


def test_an_update_with_other_outputs_is_rolled_back(
    exported: tuple[Path, Path], key: Path, tmp_path: Path
) -> None:
    """The update is complete and signed, but its self-test expects other outputs."""
    from firmware_export.commands.update import generate_parts
    from firmware_export.ota.update_package import make_update

    old, new = exported
    project = tmp_path / "firmware"
    shutil.copytree(old / "firmware", project)
    before = run_field_program(project)
    outputs = (project / "outputs.bin").read_bytes()
    wrong = make_update(
        generate_parts(old),
        generate_parts(new),
        counter=1,
        sign=read_signer(key),
        answer=lambda x: np.zeros((len(x), 10), np.int8),
        inputs=784,
        device="pi-1",
    )
    (project / "update.bin").write_bytes(wrong)
    assert "update.bin: self-test failed\nrunning update 0" in run_field_program(project)
    assert (project / "outputs.bin").read_bytes() == outputs
    assert "running update 0" in before


def test_drift_command_reports_no_drift_for_golden_samples(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    old, _ = exported
    project = tmp_path / "firmware"
    shutil.copytree(old / "firmware", project)
    (project / "samples.bin").write_bytes(np.load(old / "golden.npz")["inputs"].tobytes())
    run_field_program(project)
    result = run_export("drift", old, project / "counters.bin")
    assert result.exit_code == 0, result.output
    assert "no drift" in result.output
    figures = json.loads(run_export("drift", old, project / "counters.bin", "--json").output)
    assert figures["now"]["inferences"] == SAMPLES
    assert figures["now"]["psi"] < 0.01
    (tmp_path / "device.json").write_text("{}")
    assert run_export("drift", old, project / "counters.bin", "--state", tmp_path).exit_code == 0
    left = json.loads((tmp_path / "field.json").read_text())
    assert left["drift_inferences"] == SAMPLES and left["drifted"] == 0
    damaged = tmp_path / "counters.bin"
    damaged.write_bytes(b"EFLD")
    nowhere = ["drift", old, project / "counters.bin", "--state", tmp_path / "none"]
    for arguments in (nowhere, ["drift", old, damaged], ["drift", tmp_path, project / "counters.bin"]):
        assert isinstance(run_export(*arguments).exception, ExportError)


def test_commands_refuse_existing_missing_and_private_keys(key: Path, tmp_path: Path) -> None:
    assert key.stat().st_mode & 0o777 == 0o600
    for bad, text in (
        (["key", key], "exists"),
        (["update", tmp_path, tmp_path, "--key", tmp_path / "none", "-o", tmp_path / "u"], "make a key"),
    ):
        failed = run_export(*bad).exception
        assert isinstance(failed, ExportError)
        assert text in str(failed)
    with pytest.raises(ExportError, match="must not get into firmware"):
        read_public_key(key)
