"""`edgefl export --target`, `verify` and `profile` as a user runs them.

Errors give no traceback. `verify` also checks the folder that `edgefl demo` writes.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgefl.data.npz import save_shard
from edgefl.learning.checkpoint import encode_mixture
from edgefl.program.plan.spec import save_plan
from firmware_export.certificate.verify_report import verify_report
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.targets import TARGETS
from firmware_export.quantize.quantize import export_mixture

ROOT = Path(__file__).parents[2]
pytest.importorskip("tflite_micro")


def run_export(*arguments: object, path: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **({"PATH": path} if path else {})}
    command = [sys.executable, "-m", "edgefl", "export", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=280, check=False
    )


def assert_refused(done: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    assert all(text in done.stderr for text in texts), done.stderr


@pytest.fixture(scope="module")
def demo(digits, tmp_path_factory) -> Path:
    """The files of one client after `edgefl demo`."""
    home = tmp_path_factory.mktemp("demo")
    state = home / "devices" / "pi-1"
    save_plan(digits.plan, state / "plan")
    (state / "mixture.safetensors").write_bytes(encode_mixture(digits.mixture))
    save_shard(home / "shards" / "pi-1.npz", digits.shard)
    note = {"data": str(home / "shards" / "pi-1.npz"), "id": "pi-1", "federation": "demo", "seed": 1}
    (state / "device.json").write_text(json.dumps(note))
    export_mixture(digits.plan, digits.mixture, digits.shard, home / "clients" / "pi-1", client_id="pi-1")
    return home


def test_export_verify_and_profile_work_in_sequence(demo, tmp_path) -> None:
    if reason := explain_not_runnable(TARGETS["cortex-m4"]):
        pytest.skip(reason)
    options = [
        "--state",
        demo / "devices" / "pi-1",
        "-o",
        tmp_path,
        "--target",
        "cortex-m4",
        "--ram",
        "64K",
        "--flash",
        "256K",
    ]
    done = run_export(*options, "--samples", 5, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "certificate.json").read_text())
    done = run_export("verify", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unchecked"] == []
    done = run_export("profile", tmp_path)
    assert done.returncode == 0 and "conv1" in done.stdout and "trunk" in done.stdout
    (tmp_path / "c" / "model.h").write_text("")
    assert_refused(run_export("verify", tmp_path), "c/model.h is not the exported file")


def test_export_without_compiler_writes_all_other_files(demo, tmp_path) -> None:
    options = ["--state", demo / "devices" / "pi-1", "-o", tmp_path, "--target", "cortex-m3"]
    done = run_export(*options, "--samples", 5, path=str(tmp_path / "nothing"))
    assert done.returncode == 0, done.stderr
    assert (
        "not run: cortex-m3: arm-none-eabi-gcc and qemu-system-arm are not installed; apt-get install"
        in done.stdout
    )
    assert (tmp_path / "firmware" / "CMakeLists.txt").exists() and (tmp_path / "report.html").exists()
    assert_refused(
        run_export(*options, "--flash", "256K", path=str(tmp_path / "nothing")), "gcc-arm-none-eabi"
    )


def test_wrong_options_are_refused(demo, tmp_path) -> None:
    options = ["--state", demo / "devices" / "pi-1", "-o", tmp_path]
    assert_refused(run_export(*options, "--target", "cortex-m44"), "did you mean 'cortex-m4'")
    assert_refused(run_export(*options, "--target", "cortex-m4", "--ram", "64G"), "'64G' is not a size")
    assert_refused(run_export(*options, "--ram", "64K"), "--target is missing")
    assert_refused(run_export(*options, "--optimize", "ram"), "--target is missing")
    assert_refused(run_export(*options, "--target", "host", "--ram", "64K"), "the target is host")
    assert_refused(
        run_export(*options, "--target", "cortex-m4", "--activations", "16"), "the C has int8 activations"
    )
    (tmp_path / "names.txt").write_text("yes\nno\n")
    labels = ["--target", "host", "--labels", tmp_path / "names.txt"]
    assert_refused(run_export(*options, *labels), "there are 2 labels, expected 10")
    assert_refused(run_export("-o", tmp_path), "--state")
    assert_refused(run_export("verify", tmp_path / "none"), "no directory")
    assert_refused(run_export("verify", tmp_path), "model.tflite cannot be read")
    assert_refused(run_export("profile", tmp_path), "certificate.json cannot be read")
    assert not (tmp_path / "model.tflite").exists()


@pytest.mark.slow
def test_verify_checks_a_demo_folder_as_far_as_possible(demo, tmp_path) -> None:
    if reason := explain_not_runnable(TARGETS["host"]):
        pytest.skip(reason)
    result = verify_report(demo / "clients" / "pi-1")
    assert [line for line in result.checked if "every output byte the same: tflite-micro" in line]
    assert [line for line in result.checked if "accuracy on" in line]
    alone = Path(shutil.copytree(demo / "clients" / "pi-1", tmp_path / "pi-1"))
    result = verify_report(alone)
    assert len(result.checked) == 1 and "pass --data" in result.unchecked[0]


def test_verify_refuses_a_damaged_demo_folder(demo, tmp_path) -> None:
    broken = Path(shutil.copytree(demo, tmp_path / "demo")) / "clients" / "pi-1"
    note = json.loads((broken / "report.json").read_text())
    (broken / "report.json").write_text(json.dumps(note | {"accuracy_int8": 0.5}))
    assert_refused(run_export("verify", broken), "accuracy_int8 0.5")
    (broken / "report.json").write_text("{")
    assert_refused(run_export("verify", broken), "report.json is damaged")
    (broken / "report.json").write_text(json.dumps(note))
    (broken / "model.tflite").write_bytes((broken / "model.tflite").read_bytes()[:-1])
    assert_refused(run_export("verify", broken), "model.tflite does not match report.json")
