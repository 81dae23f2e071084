"""Names in a model file never become code in the generated files or in a verification."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from edgefl.data.npz import save_shard
from edgefl.learning.checkpoint import encode_mixture
from edgefl.program.plan.spec import save_plan
from firmware_export.certificate.tflm import render_model_ops_h
from firmware_export.codegen.c_source import generate_c
from firmware_export.firmware.firmware import (
    build_and_run,
    build_firmware,
    explain_not_runnable,
    run_firmware,
)
from firmware_export.firmware.targets import TARGETS
from firmware_export.tflite.quantized_model import read_quantized_model

ROOT = Path(__file__).parents[2]
PAYLOAD = (
    'x */\n#include <stdlib.h>\n__attribute__((constructor)) static void owned(void){ system("id > %s"); '
    "}\n/* "
)
NAMES = (
    "a */ b",
    "a\nint b;\n",
    "a\\\nint b;",
    "a ??/\nint b;",
    "模型 é \u202e",
    "a" * 10_000,
    "\x1b[31mred",
    "int",
    "*/",
    "\x00",
    "%s {p} @OPTIONS@",
)


def rename_tensors(model: bytes, rename) -> bytes:
    """Return the .tflite with `rename(index, old name)` as the names of its tensors."""
    from edgefl.program.plan.tflite import pack_model, unpack_model

    root = unpack_model(model)
    for index, tensor in enumerate(root.subgraphs[0].tensors):
        tensor.name = rename(index, tensor.name)
    for signature in root.signatureDefs or ():
        for entry in (*signature.inputs, *signature.outputs):
            entry.name = entry.name or b"x"
    return pack_model(root, len(model))


def run_edgefl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgefl", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ), timeout=600, check=False
    )


@pytest.fixture
def hostile(digits, tmp_path) -> tuple[Path, Path]:
    """A device's state with a hostile template, and the file that the attack would write.

    The template names its input after a C function.
    """
    owned = tmp_path / "OWNED"
    state = tmp_path / "state"
    save_plan(digits.plan, state / "plan")
    template = digits.plan.template
    first = read_quantized_model(template).inputs[0]
    name = (PAYLOAD % owned).encode()
    save_plan(
        type(digits.plan)(
            digits.plan.spec,
            digits.plan.program,
            rename_tensors(template, lambda i, old: name if i == first else old),
        ),
        state / "plan",
    )
    (state / "mixture.safetensors").write_bytes(encode_mixture(digits.mixture))
    save_shard(tmp_path / "shard.npz", digits.shard)
    note = {"data": str(tmp_path / "shard.npz"), "id": "pi-1", "federation": "demo", "seed": 1}
    (state / "device.json").write_text(json.dumps(note))
    return state, owned


def test_tensor_name_is_never_executed_by_export_or_verify(hostile, tmp_path) -> None:
    pytest.importorskip("tflite_micro")
    if reason := explain_not_runnable(TARGETS["host"]):
        pytest.skip(reason)
    state, owned = hostile
    ran = []
    for arguments in (
        ("--state", state, "-o", tmp_path / "out", "--target", "host", "--samples", 3),
        ("verify", tmp_path / "out"),
    ):
        done = run_edgefl("export", *arguments)
        assert done.returncode == 0, done.stderr
        ran += [arguments[0]] if owned.exists() else []
        owned.unlink(missing_ok=True)
    assert not ran, f"the name of a tensor ran as code in edgefl export {ran}"
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert next(row for row in certificate["parity"] if row["place"] == "host")["status"] == "equal"
    for path in (tmp_path / "out").rglob("*"):
        assert (
            path.suffix == ".tflite"
            or not path.is_file()
            or b"__attribute__((constructor))" not in path.read_bytes()
        ), path


@pytest.mark.parametrize("name", NAMES)
def test_any_tensor_name_gives_correct_c(name, graphs, compiled, tmp_path) -> None:
    rng = np.random.default_rng(0)
    kernel = rng.integers(-9, 9, (4, 6)).astype(np.int8)
    bias = np.zeros(4, np.int32)
    weights = (
        graphs.T((4, 6), 0.02, data=kernel, name=name),
        graphs.T((4,), np.array([0.001]), data=bias, name=name),
    )
    tensors = [
        graphs.T((1, 6), name=name),
        *weights,
        graphs.T((1, 4), 0.01, name=name),
        graphs.T((1, 4), 1 / 256, -128, name=name),
    ]
    operators = [
        graphs.Op("FULLY_CONNECTED", (0, 1, 2), (3,), {}, "FullyConnected"),
        graphs.Op("SOFTMAX", (3,), (4,), {"beta": 1.0}, "Softmax"),
    ]
    model = graphs.make_tflite(tensors, operators)
    source = generate_c(model)
    for text in source.files.values():
        assert text.isascii() and max(map(len, text.splitlines())) < 600
        comments_removed = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        assert "int b;" not in comments_removed and "*/" not in comments_removed
        assert "??" not in text and "\x1b" not in text
    samples = rng.integers(-128, 128, (5, 6)).astype(np.int8)
    received, _ = compiled.run(compiled.build(source, tmp_path), samples, 4)
    np.testing.assert_array_equal(received, compiled.run_micro(model, samples))


def test_version_in_certificate_cannot_end_a_c_comment() -> None:
    from firmware_export.tflite.graph import OperatorGraph

    text = render_model_ops_h(
        OperatorGraph((("ADD", (0,)),), (), ()), 10, 16, '1.0\nstatic int owned = system("id");\n//'
    )
    assert "system(" not in text and not [
        line for line in text.splitlines() if line.startswith("static int owned")
    ]


SHELL = """
static int call(int operation, const void *block)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}
static void owned(void)
{
    static const char text[] = "%s";
    const uint32_t block[2] = {(uint32_t)text, sizeof text - 1};
    call(0x12, block);
}
void model_invoke("""


def test_semihosting_starts_no_process_on_the_host(hand, tmp_path) -> None:
    target = TARGETS["cortex-m3"]
    if reason := explain_not_runnable(target):
        pytest.skip(reason)
    owned = tmp_path / "OWNED"
    evil = (
        hand.FILES["model.c"]
        .replace("void model_invoke(", SHELL % f"touch {owned}", 1)
        .replace("    for (int o", "    owned();\n    for (int o", 1)
    )
    inputs = np.zeros((1, 3), np.int8)
    with suppress(ExportError):  # QEMU may end the program after such a request
        build_and_run({**hand.FILES, "model.c": evil}, target, inputs, tmp_path / "work")
    assert not owned.exists()


GREEDY = {
    "memory": "if (malloc((size_t)5 << 30) == NULL) {\n        abort();\n    }",
    "file": 'FILE *file = fopen("large", "wb");\n    for (;;) {\n        fwrite(text, 1, sizeof text, '
    "file);\n    }",
    "text": "for (;;) {\n        fwrite(text, 1, sizeof text, stdout);\n    }",
}


@pytest.mark.parametrize(
    ("kind", "reason"), [("memory", "failed"), ("file", "67,108,864 bytes"), ("text", "67,108,864 bytes")]
)
def test_program_that_exceeds_a_limit_is_stopped_with_a_reason(kind, reason, hand, tmp_path) -> None:
    target = TARGETS["host"]
    if missing := explain_not_runnable(target):
        pytest.skip(missing)
    greedy = (
        "static void take(void)\n{\n    static char text[65536];\n    (void)text;\n    "
        f"{GREEDY[kind]}\n}}\nvoid model_invoke("
    )
    model = "#include <stdio.h>\n#include <stdlib.h>\n" + hand.FILES["model.c"].replace(
        "void model_invoke(", greedy, 1
    )
    model = model.replace("    for (int o", "    take();\n    for (int o", 1)
    built = build_firmware({**hand.FILES, "model.c": model}, target, tmp_path)
    message = ""
    try:
        run_firmware(built, np.zeros((1, 3), np.int8), tmp_path, deadline_s=5)
    except ExportError as error:
        message = str(error)
    assert reason in message
