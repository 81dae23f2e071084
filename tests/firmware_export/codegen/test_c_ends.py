"""Models with several inputs or outputs, in one buffer of each."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from edgefl.base.errors import DataError, ExportError
from firmware_export.codegen.c_source import generate_c
from firmware_export.commands.export import export
from firmware_export.tflite.interpreter import load_tflite

pytest.importorskip("tflite_micro")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture
def sums(graphs):
    """Return a model that takes a, b and c, and gives a + b, b, and the sum of all three."""
    tensors = [
        graphs.T((1, 2), 0.5, 0, name="a"),
        graphs.T((1, 2), 0.25, 10, name="b"),
        graphs.T((1, 2, 1), 0.5, -5, name="c"),
        graphs.T((1, 2), 0.5, 1, name="left"),
        graphs.T((1, 2), 0.5, -5, name="flat"),
        graphs.T((1, 2), 1.0, 2, name="all"),
    ]
    operators = [
        graphs.Op(name="ADD", inputs=(0, 1), outputs=(3,), options={}, options_class="Add"),
        graphs.Op(
            name="RESHAPE", inputs=(2,), outputs=(4,), options={"newShape": [1, 2]}, options_class="Reshape"
        ),
        graphs.Op(name="ADD", inputs=(3, 4), outputs=(5,), options={}, options_class="Add"),
    ]
    return graphs.make_tflite(tensors, operators, inputs=(0, 1, 2), outputs=(3, 1, 5))


def test_inputs_and_outputs_follow_one_another(compiled, sums, tmp_path) -> None:
    """The first sample is a = (1, -1), b = (2, 3), c = (4, 0)."""
    x = np.array([[2, -2, 18, 22, 3, -5], [127, -128, -128, 127, 127, -128]], np.int8)
    expected = compiled.run_micro(sums, x)
    assert expected[0].tolist() == [7, 5, 18, 22, 9, 4]
    program = compiled.build(generate_c(sums), tmp_path, *SANITIZERS)
    np.testing.assert_array_equal(compiled.run(program, x, 6)[0], expected)


def test_each_end_has_its_macros(sums) -> None:
    header = generate_c(sums).files["model.h"]
    for line in (
        "#define MODEL_INPUTS 3",
        "#define MODEL_INPUT_BYTES 6",
        "#define MODEL_INPUT1_START 2",
        "#define MODEL_INPUT1_SCALE 2.5e-01f",
        "#define MODEL_INPUT2_ZERO_POINT (-5)",
        "#define MODEL_OUTPUT2_START 4",
        "#define MODEL_OUTPUT_BYTES 6",
    ):
        assert line in header.splitlines()
    assert "model_classify" not in header and "MODEL_INPUT_SCALE" not in header


def test_the_runtimes_take_the_inputs_of_a_sample_one_after_another(compiled, sums) -> None:
    x = np.array([[2, -2, 18, 22, 3, -5]], np.int8)
    for runtime in ("auto", "tflite-micro"):
        loaded = load_tflite(sums, runtime, reference=runtime == "auto")
        assert loaded.shape == (1, 6) and loaded.zero_point.tolist() == [0, 0, 10, 10, -5, -5]
        assert loaded.output_scale.tolist() == [0.5, 0.5, 0.25, 0.25, 1, 1]
        assert loaded.invoke(x).tolist() == [7, 5, 18, 22, 9, 4]


@pytest.mark.parametrize("seed", range(6))
def test_random_models_with_several_outputs_match_tflite_micro(
    compiled, graphs, random_models, tmp_path, seed
) -> None:
    model = random_models.make_model_with_many_ends(graphs, seed)
    sizes = [int(np.prod(shape)) for shape in ((4, 5, 2), (4, 5, 2), (3,))]
    x = np.random.default_rng(seed).integers(-128, 128, (20, sum(sizes))).astype(np.int8)
    expected = compiled.run_micro(model, x)
    for optimize in ("speed", "ram"):
        program = compiled.build(generate_c(model, optimize=optimize), tmp_path / optimize, *SANITIZERS)
        np.testing.assert_array_equal(compiled.run(program, x, expected.shape[1])[0], expected)
    assert len(np.unique(expected)) > 2, "the test's values give one output"


def test_export_and_its_example_have_all_ends(compiled, sums, tmp_path) -> None:
    model = tmp_path / "sums.tflite"
    model.write_bytes(sums)
    out = tmp_path / "out"
    arguments = [str(model), "-o", str(out), "--target", "host", "--samples", "20"]
    done = CliRunner().invoke(export, arguments)
    assert done.exit_code == 0 and "every output byte the same" in done.output, done.output
    example = out / "c" / "examples" / "host" / "main.c"
    program = tmp_path / "example"
    sources = [example, out / "c" / "model.c", out / "c" / "model_weights.c"]
    command = ["gcc", *compiled.STRICT, f"-I{out / 'c'}", "-o", program, *sources]
    subprocess.run(command, check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    values = [float(line.split(": ")[1]) for line in printed.splitlines()]
    assert values == [0] * 6 and "output 5: 0" in printed
    assert "input[MODEL_INPUT1_START + 0] = model_quantize_input1(1.5f)" in (out / "c/README.md").read_text()


def test_labels_for_several_outputs_are_refused(sums) -> None:
    with pytest.raises(ExportError, match=r"6 labels for a model with 3 outputs, expected one output"):
        generate_c(sums, labels=["x"] * 6)


def test_a_model_without_an_input_is_refused(graphs, tmp_path: Path) -> None:
    tensors = [graphs.T((1, 2), data=np.ones((1, 2), np.int8)), graphs.T((1, 2))]
    model = graphs.make_tflite(tensors, [graphs.Op("RELU", (0,), (1,))], inputs=())
    with pytest.raises(ExportError, match=r"the model has no inputs, expected at least one"):
        generate_c(model)


def test_labels_of_samples_for_several_outputs_are_refused(sums, tmp_path) -> None:
    model = tmp_path / "sums.tflite"
    model.write_bytes(sums)
    np.savez(tmp_path / "samples.npz", x=np.zeros((4, 6), np.int8), y=np.zeros(4, np.int64))
    arguments = [str(model), "-o", str(tmp_path / "out"), "--target", "host"]
    done = CliRunner().invoke(export, [*arguments, "--data", str(tmp_path / "samples.npz")])
    assert isinstance(done.exception, DataError)
    assert re.search(
        r"has labels, and the model has 3 outputs, expected one .* leave y out", str(done.exception)
    )
