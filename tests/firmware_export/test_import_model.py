"""`edgefl export MODEL.tflite`: firmware from models that edgefl did not train."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgefl.base.errors import ExportError
from firmware_export.certificate.import_model import dequantize_input, draw_random_samples, read_samples
from firmware_export.certificate.verify import verify_bundle
from firmware_export.codegen.c_source import generate_c
from firmware_export.commands.export import export
from firmware_export.commands.update import generate_parts
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.targets import TARGETS
from firmware_export.tflite.interpreter import load_tflite, quantize_input
from firmware_export.tflite.portable import to_portable

pytest.importorskip("tflite_micro")
MLPERF_TINY = Path(__file__).parents[3] / "shared" / "data" / "mlperf_tiny"
REFERENCE_MODELS = ("kws", "ic", "ad")


@pytest.fixture
def model(graphs, tmp_path) -> Path:
    """A dense layer of eight inputs and three outputs, in a file."""
    rng = np.random.default_rng(1)
    weights = rng.integers(-128, 128, (3, 8)).astype(np.int8)
    tensors = [
        graphs.T((1, 8), 0.1, 3),
        graphs.T(shape=(3, 8), scales=[0.01, 0.02, 0.015], zero=0, data=weights),
        graphs.T(shape=(3,), scales=[0.001, 0.002, 0.0015], zero=0, data=np.array([10, -20, 30], np.int32)),
        graphs.T((1, 3), 0.2, -5),
    ]
    operators = [
        graphs.Op(
            name="FULLY_CONNECTED", inputs=(0, 1, 2), outputs=(3,), options={}, options_class="FullyConnected"
        )
    ]
    path = tmp_path / "dense.tflite"
    path.write_bytes(graphs.make_tflite(tensors, operators))
    return path


def run_export(*arguments: object) -> Result:
    return CliRunner().invoke(export, [str(argument) for argument in arguments])


def test_random_inputs_prove_bytes_only(model, tmp_path) -> None:
    out = tmp_path / "out"
    result = run_export(model, "-o", out, "--target", "host", "--samples", 60)
    assert result.exit_code == 0, result.output
    assert "no labels: the certificate proves equal bytes, and says nothing about accuracy" in result.output
    assert "60 random inputs, every output byte the same: tflite-micro" in result.output
    assert "keep it private" not in result.output
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["golden"]["inputs"] == "random"
    first = [row["place"] for row in certificate["parity"] if row["samples"] == 50]
    small = f"; the first 50 of them: {', '.join(first)}"
    assert first and small in result.output
    assert certificate["accuracy"]["accuracy_int8"] is None
    assert not (out / "model_float.tflite").exists()
    assert "random inputs, which prove bytes only" in (out / "report.html").read_text()
    lines = verify_bundle(out).checked
    assert any("60 samples, every output byte the same" in line and small in line for line in lines)
    assert not any("accuracy" in line for line in lines)


def test_optimized_ram_is_recorded_and_verified(graphs, random_models, tmp_path) -> None:
    made = random_models.Graph(graphs=graphs, rng=np.random.default_rng(1))
    tip = made.add_tensor((1, 6, 6, 8))
    for _ in range(3):
        inputs, scale = made.add_kernel(tip, made.draw_weights(8, 1, 1, 8), 8, 0)
        options = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
        tip = made.add_operator("CONV_2D", inputs, (made.add_tensor((1, 6, 6, 8), scale),), options, "Conv2D")
    path, out = tmp_path / "chain.tflite", tmp_path / "out"
    path.write_bytes(graphs.make_tflite(made.tensors, made.operators, outputs=(tip,)))
    arguments = (path, "-o", out, "--target", "host", "--samples", 5)
    assert run_export(*arguments, "--optimize", "ram").exit_code == 0
    least = json.loads((out / "certificate.json").read_text())
    assert least["optimize"] == "ram" and "MOVE" in [layer["op"] for layer in least["layers"]]
    assert least["arena"]["bytes"] == 288 + 8
    verify_bundle(out)
    assert generate_parts(out).layout != generate_c(path.read_bytes()).layout
    for value, message in (("speed", "c/model.h does not follow"), ("size", "optimize is 'size'")):
        (out / "certificate.json").write_text(json.dumps(least | {"optimize": value}))
        with pytest.raises(ExportError, match=message):
            verify_bundle(out)


@pytest.mark.slow
def test_verify_draws_random_inputs_again(model, tmp_path) -> None:
    out = tmp_path / "out"
    result = run_export(model, "-o", out, "--target", "host", "--samples", 30, "--seed", 7)
    assert result.exit_code == 0, result.output
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["golden"]["seed"] == 7
    assert "the inputs are 30 random inputs with the seed 7" in verify_bundle(out).checked
    del certificate["golden"]["seed"]  # as in a certificate of an older edgefl
    (out / "certificate.json").write_text(json.dumps(certificate))
    result = verify_bundle(out)
    assert not any("seed" in line for line in result.checked)
    assert any("origin of the inputs: the certificate has no seed" in line for line in result.unchecked)
    for seed in (8, 7.0, True, -1, "7"):
        certificate["golden"]["seed"] = seed
        (out / "certificate.json").write_text(json.dumps(certificate))
        message = "not the random inputs with the seed 8" if seed == 8 else "golden.seed is"
        with pytest.raises(ExportError, match=f"{message}.*export again"):
            verify_bundle(out)


@pytest.mark.slow
def test_seed_belongs_to_random_inputs_only(model, tmp_path) -> None:
    out = tmp_path / "out"
    np.savez(tmp_path / "samples.npz", x=np.zeros((30, 8), np.int8))
    assert run_export(model, "-o", out, "--target", "host", "--data", tmp_path / "samples.npz").exit_code == 0
    certificate = json.loads((out / "certificate.json").read_text())
    assert "seed" not in certificate["golden"]
    certificate["golden"]["seed"] = 1
    (out / "certificate.json").write_text(json.dumps(certificate))
    with pytest.raises(ExportError, match=r"differs: golden\.seed is 1, measured null"):
        verify_bundle(out)


@pytest.mark.slow
def test_verify_prints_warnings_on_lines_of_their_own(model, tmp_path) -> None:
    out = tmp_path / "out"
    assert run_export(model, "-o", out, "--target", "host", "--samples", 4).exit_code == 0
    printed = run_export("verify", out)
    assert printed.exit_code == 0, printed.output
    lines = printed.output.splitlines()
    assert [line for line in lines if line.startswith("warning      4 samples prove little, expected")]
    assert "WARNING" not in printed.output
    assert all(line.startswith(("ok           ", "warning      ", "not checked  ")) for line in lines)
    result = json.loads(run_export("verify", out, "--json").output)
    (warning,) = result["warnings"]
    assert warning.startswith("4 samples prove little")
    assert not any("prove little" in line for line in (*result["checked"], *result["unchecked"]))


def test_exceeded_budget_names_remedies_of_an_imported_model(model, tmp_path) -> None:
    if reason := explain_not_runnable(TARGETS["cortex-m4"]):
        pytest.skip(reason)
    options = ["--target", "cortex-m4", "--samples", 2, "--ram", 16, "--flash", 16]
    result = run_export(model, "-o", tmp_path / "out", *options)
    assert isinstance(result.exception, ExportError)
    flash, ram = str(result.exception).split("\nthe model needs ")
    assert "bytes of flash on cortex-m4, expected at most 16" in flash
    assert "a larger --flash" in flash and "another --target" in flash
    assert "bytes of RAM on cortex-m4, expected at most 16" in ram
    assert "--optimize ram, or a larger --ram" in ram and "another --target" in ram
    for text in (flash, ram):
        assert [line[:5] for line in text.splitlines()[1:]] == ["  1. ", "  2. ", "  3. "]
        for foreign in ("[model]", "[algorithm]", "federation", "--weights"):
            assert foreign not in text


def test_labels_give_an_accuracy(model, tmp_path) -> None:
    out = tmp_path / "out"
    loaded = load_tflite(model.read_bytes(), reference=True)
    x = np.random.default_rng(2).normal(0, 5, (35, 8)).astype(np.float32)
    answers = np.array([loaded.invoke(row[None]).argmax() for row in quantize_input(loaded, x)])
    y = np.where(np.arange(35) < 7, (answers + 1) % 3, answers)
    np.savez(tmp_path / "samples.npz", x=x, y=y)
    result = run_export(model, "-o", out, "--target", "host", "--data", tmp_path / "samples.npz")
    assert result.exit_code == 0, result.output
    assert "accuracy: int8 0.8000" in result.output
    assert "keep it private" in result.output
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["golden"] | {"outputs_sha256": ""} == {
        "inputs": "file",
        "samples": 35,
        "outputs_sha256": "",
    }
    assert certificate["accuracy"]["accuracy_float"] is None
    assert "accuracy: int8 0.8000" in verify_bundle(out).checked


def test_int8_samples_are_input_bytes(model, tmp_path) -> None:
    quantized = np.random.default_rng(3).integers(-128, 128, (300, 8)).astype(np.int8)
    quantized[0], quantized[1] = -128, 127
    np.savez(tmp_path / "bytes.npz", x=quantized)
    content = model.read_bytes()
    x, y = read_samples(tmp_path / "bytes.npz", content, 250)
    assert (x.shape, y.shape) == ((250, 8), (0,))
    np.testing.assert_array_equal(quantize_input(load_tflite(content), x), quantized[:250])


def test_random_samples_cover_all_bytes_and_depend_on_the_seed(model) -> None:
    loaded = load_tflite(model.read_bytes())
    x = draw_random_samples(loaded, 1000, 1)
    assert set(np.unique(quantize_input(loaded, x))) == set(range(-128, 128))
    np.testing.assert_array_equal(x, draw_random_samples(loaded, 1000, 1))
    assert (x != draw_random_samples(loaded, 1000, 2)).any()
    assert dequantize_input(loaded, np.array([[loaded.zero_point] * 8]))[0, 0] == 0


@pytest.mark.slow
def test_labels_are_strings_of_the_header(model, tmp_path) -> None:
    """Names with quotes, a trigraph, a digit after an octal escape, and another alphabet."""
    names = ['a "quoted" one\\', "??=1", "größe9 \N{SNOWMAN}"]
    (tmp_path / "labels.txt").write_text("\n".join(names), "utf-8")
    out = tmp_path / "out"
    options = ("--target", "host", "--samples", 4, "--prefix", "door", "--labels", tmp_path / "labels.txt")
    result = run_export(model, "-o", out, *options)
    assert result.exit_code == 0, result.exception
    assert "door_labels" in (out / "c" / "door.h").read_text()
    main = '#include <stdio.h>\n#include "door.h"\nint main(void) { for (int i = 0; i < 3; i++) '
    (tmp_path / "main.c").write_text(main + "puts(door_labels[i]); return 0; }\n")
    sources = [tmp_path / "main.c", out / "c" / "door.c", out / "c" / "door_weights.c"]
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{out / 'c'}"]
    subprocess.run(["cc", *options, *sources, "-o", tmp_path / "names"], check=True, timeout=100)
    ran = subprocess.run([tmp_path / "names"], capture_output=True, check=True, timeout=100)
    assert ran.stdout.decode().splitlines() == names
    verify_bundle(out)
    certificate = json.loads((out / "certificate.json").read_text())
    (out / "certificate.json").write_text(json.dumps({**certificate, "labels": ["a", "b", "c"]}))
    with pytest.raises(ExportError, match=r"c/door\.[ch] does not follow"):
        verify_bundle(out)


def test_wrong_number_of_labels_is_refused(model, tmp_path) -> None:
    (tmp_path / "labels.txt").write_text("walk\nrun\n")
    result = run_export(
        model, "-o", tmp_path / "out", "--target", "host", "--labels", tmp_path / "labels.txt"
    )
    assert "there are 2 labels, expected 3, one for each output" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_labels_of_a_model_with_one_output_are_refused(graphs, tmp_path) -> None:
    """A sigmoid has no class of highest score, so there is no accuracy and no class name."""
    path = tmp_path / "sigmoid.tflite"
    sigmoid = graphs.Op("LOGISTIC", (0,), (1,))
    tensors = [graphs.T((1, 1), 0.1, 0), graphs.T((1, 1), 1 / 256, -128)]
    path.write_bytes(graphs.make_tflite(tensors, [sigmoid]))
    (tmp_path / "labels.txt").write_text("no\nyes\n")
    result = run_export(path, "-o", tmp_path / "out", "--target", "host", "--labels", tmp_path / "labels.txt")
    assert "has no classes: leave the labels out" in str(result.exception)
    np.savez(tmp_path / "samples.npz", x=np.zeros((4, 1), np.float32), y=np.array([0, 1, 1, 0]))
    result = run_export(path, "-o", tmp_path / "out", "--target", "host", "--data", tmp_path / "samples.npz")
    assert "the model has one output, such as a sigmoid" in str(result.exception)


X = np.zeros((4, 8), np.float32)


@pytest.mark.parametrize(
    ("arrays", "found", "expected"),
    [
        ({"x": X[:, :5]}, "(4, 5)", "(n, 8)"),
        ({"x": X[:0]}, "(0, 8)", "(n, 8)"),
        ({"x": X + np.nan}, "not finite", "remove those samples"),
        ({"x": X.astype(str)}, "type <U", "float32 or int8"),
        ({"x": X, "y": np.zeros(3, np.int64)}, "shape (3,)", "4 integers"),
        ({"x": X, "y": np.zeros(4)}, "float64", "4 integers"),
        ({"images": X}, "no array x, received images", "samples x"),
        ({"x": X.astype(np.float64) + 1e300}, "not finite", "remove those samples"),
        ({"x": X, "y": np.full(4, 2**63 + 5, np.uint64)}, "uint64", "4 integers"),
        ({"x": np.float32(1)}, "shape ()", "(n, 8)"),
        ({"x": X, "y": np.array([0, 1, 2, 3])}, "labels from 0 to 3", "0 to 2"),
        ({"x": X, "y": np.array([-1, 0, 1, 2])}, "labels from -1 to 2", "0 to 2"),
    ],
)
def test_unusable_samples_are_named(arrays, found, expected, model, tmp_path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, **arrays)
    result = run_export(model, "-o", tmp_path / "out", "--target", "host", "--data", path)
    assert result.exit_code == 1
    message = str(result.exception)
    assert str(path) in message and found in message and expected in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"junk", None])
def test_files_that_are_no_samples_are_named(content, model, tmp_path) -> None:
    path = tmp_path / "samples.npz"
    if content is not None:
        path.write_bytes(content)
    result = run_export(model, "-o", tmp_path / "out", "--target", "host", "--data", path)
    assert str(path) in str(result.exception) and "pass a .npz" in str(result.exception)


def test_unsupported_operators_are_named_with_their_layers(graphs, tmp_path) -> None:
    tensors = [
        graphs.T((1, 8), name="in"),
        graphs.T((1, 8), name="late/exp"),
        graphs.T((1, 8), name="late/gelu"),
    ]
    operators = [
        graphs.Op("EXP", (0,), (1,)),
        graphs.Op(name="GELU", inputs=(1,), outputs=(2,), options={}, options_class="Gelu"),
    ]
    path = tmp_path / "model.tflite"
    path.write_bytes(graphs.make_tflite(tensors, operators))
    result = run_export(path, "-o", tmp_path / "out", "--target", "host")
    message = str(result.exception)
    assert str(path) in message and "EXP (late/exp)" in message and "GELU (late/gelu): use ReLU" in message


def test_float_models_are_refused(graphs, tmp_path) -> None:
    tensors = [graphs.T((1, 8), (), kind="FLOAT32"), graphs.T((1, 8), (), kind="FLOAT32")]
    path = tmp_path / "model.tflite"
    path.write_bytes(graphs.make_tflite(tensors, [graphs.Op("RELU", (0,), (1,))]))
    result = run_export(path, "-o", tmp_path / "out", "--target", "host")
    assert "FLOAT32, expected INT8" in str(result.exception)


def test_output_without_a_flatten_layer_is_compared(graphs, tmp_path) -> None:
    tensors = [graphs.T((1, 2, 2, 3), 0.1), graphs.T((1, 2, 2, 3), 0.1, -128)]
    path = tmp_path / "model.tflite"
    path.write_bytes(graphs.make_tflite(tensors, [graphs.Op("RELU", (0,), (1,))]))
    result = run_export(path, "-o", tmp_path / "out", "--target", "host", "--samples", 40)
    assert result.exit_code == 0, result.exception
    assert "40 random inputs, every output byte the same" in result.output


def make_damaged_models(graphs) -> dict[str, bytes]:
    """Models whose parts contradict each other, by a fragment of the error."""
    geometry = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    kernel = graphs.T(shape=(2, 3, 3, 1), scales=0.1, zero=0, data=np.ones((2, 3, 3, 1), np.int8))
    tensors = [graphs.T((1, 4, 4, 1)), kernel, graphs.T((1, 4, 40, 2))]
    convolution = graphs.Op(
        name="CONV_2D", inputs=(0, 1, -1), outputs=(2,), options=geometry, options_class="Conv2D"
    )
    window = {"padding": 1, "filterHeight": 2, "filterWidth": 2, "strideH": 2, "strideW": 2}
    pool = graphs.Op(name="MAX_POOL_2D", inputs=(0,), outputs=(1,), options=window, options_class="Pool2D")
    return {
        "size 4 along axis 1, expected 2": graphs.make_tflite(tensors, [convolution]),
        "size 7 along axis 1, expected 4": graphs.make_tflite(
            [graphs.T((1, 8, 8, 2)), graphs.T((1, 7, 4, 2))], [pool]
        ),
        "leave one out": graphs.make_tflite(
            [graphs.T((1, 8)), graphs.T((1, 8))],
            [graphs.Op(name="ADD", inputs=(0, -1), outputs=(1,), options={}, options_class="Add")],
        ),
        "no operator computes it": graphs.make_tflite(
            [graphs.T((1, 8)), graphs.T((1, 8)), graphs.T((1, 8), data=np.zeros((1, 8), np.int8))],
            [graphs.Op("RELU", (0,), (1,))],
        ),
    }


@pytest.mark.parametrize("number", range(4))
def test_models_that_contradict_themselves_are_refused(number, graphs, tmp_path) -> None:
    """The C would write outside its buffers, and a runtime would crash this process."""
    message, model = list(make_damaged_models(graphs).items())[number]
    path = tmp_path / "model.tflite"
    path.write_bytes(model)
    result = run_export(path, "-o", tmp_path / "out", "--target", "host")
    assert isinstance(result.exception, ExportError) and message in str(result.exception)


@pytest.mark.parametrize("name", ["model_float.tflite", "report.json"])
def test_export_of_a_device_is_not_overwritten(name, model, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for file in (name, "model.tflite"):
        (out / file).write_bytes(b"of a device")
    result = run_export(model, "-o", out, "--target", "host")
    assert isinstance(result.exception, ExportError)
    assert f"{out} contains {name}" in str(result.exception) and "pass another -o" in str(result.exception)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == dict.fromkeys(
        (name, "model.tflite"), b"of a device"
    )


def test_given_model_is_not_overwritten(model, tmp_path) -> None:
    given = model.rename(tmp_path / "model.tflite")
    content = given.read_bytes()
    result = run_export(given, "-o", tmp_path, "--target", "host")
    assert f"would overwrite {given}" in str(result.exception)
    assert given.read_bytes() == content and [path.name for path in tmp_path.iterdir()] == ["model.tflite"]


def test_options_before_the_model_are_refused(model, tmp_path) -> None:
    result = run_export("-o", tmp_path / "out", "--target", "host", model)
    assert result.exit_code == 2 and "put the model first" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_second_export_replaces_the_first(model, tmp_path) -> None:
    out = tmp_path / "out"
    for samples in (31, 32):
        assert run_export(model, "-o", out, "--target", "host", "--samples", samples).exit_code == 0
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["golden"]["samples"] == 32
    (out / "c" / "model.c").write_text("/* edited */")
    with pytest.raises(Exception, match=r"c/model\.c is not the exported file"):
        verify_bundle(out)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written_is_named(model, tmp_path) -> None:
    out = tmp_path / "closed" / "out"
    out.parent.mkdir(mode=0o500)
    result = run_export(model, "-o", out, "--target", "host")
    assert f"cannot write the export to {out}" in str(result.exception)


@pytest.mark.parametrize(
    "name", ["vww", *(pytest.param(name, marks=pytest.mark.slow) for name in REFERENCE_MODELS)]
)
def test_reference_models_of_mlperf_tiny_are_exported(name, tmp_path) -> None:
    path = MLPERF_TINY / f"{name}.tflite"
    if not path.exists():
        pytest.skip("MLPerf Tiny's reference models are not on this machine")
    out = tmp_path / "out"
    result = run_export(path, "-o", out, "--target", "cortex-m4", "--samples", 4, "--json")
    assert result.exit_code == 0, result.exception
    certificate = json.loads(result.stdout)
    places = {row["place"] for row in certificate["parity"] if row["status"] == "equal"}
    assert {
        "tflite-micro",
        "host",
        "cortex-m3",
        "cortex-m4",
        "cortex-m7",
        "cortex-m33",
        "cortex-m55",
        "rv32imc",
        "lx106",
    } <= places
    assert (out / "model.tflite").read_bytes() == to_portable(path.read_bytes())
