"""Models that keep a state from one inference to the next, over sequences of inferences in tflite-micro."""

import subprocess
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from edgefl.base.errors import ExportError
from firmware_export.codegen.c_source import generate_c
from firmware_export.codegen.c_state import plan_state
from firmware_export.commands.export import export
from firmware_export.tflite.quantized_model import read_quantized_model

pytest.importorskip("tflite_micro")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
Q = 0.5, -3
STEPS = 40


@pytest.fixture
def counter(graphs):
    """A model that adds its input to the sum of all inputs so far, which begins at 5 * .5."""
    tensors = [
        graphs.T((1, 1), *Q),
        graphs.make_handle(),
        graphs.T((1, 1), *Q),
        graphs.T((1, 1), *Q),
    ]
    operators = [
        graphs.Op("CALL_ONCE", (), (), {"initSubgraphIndex": 1}, "CallOnce"),
        graphs.name_variable("voice/sum", 1),
        graphs.Op("READ_VARIABLE", (1,), (2,)),
        graphs.Op("ADD", (0, 2), (3,), {}, "Add"),
        graphs.Op("ASSIGN_VARIABLE", (1, 3), ()),
    ]
    initial = {"voice/sum": graphs.T((1, 1), *Q, np.full((1, 1), 2, np.int8))}
    return graphs.make_tflite(tensors, operators, initial=initial)


def test_a_variable_keeps_its_value_until_the_next_inference(compiled, counter, tmp_path) -> None:
    """The values are .5 * (byte + 3), so that the sums of 1, 2 and -4 are 3.5, 5.5 and 1.5."""
    x = np.array([[-1], [1], [-11]], np.int8)
    expected = [[4], [8], [0]]
    assert compiled.run_micro(counter, x).tolist() == expected
    program = compiled.build(generate_c(counter), tmp_path, *SANITIZERS)
    assert compiled.run(program, x, 1)[0].tolist() == expected


RESET_MAIN = """
#include <stdio.h>
#include "model.h"
static void run(struct model_state *state, int8_t value)
{
    static uint64_t arena[MODEL_ARENA_BYTES / 8];
    int8_t output;
    if (model_run(arena, state, &value, &output) == 0) {
        printf("%d ", output);
    }
}
int main(void)
{
    static struct model_state one, two;
    int8_t input = -1, output;
    model_reset_state(&one);
    model_reset_state(&two);
    run(&one, -1);
    run(&two, 1);
    run(&one, -1);
    model_reset_state(&two);
    run(&two, 1);
    run(&one, -1);
    for (int i = 0; i < 3; i++) {
        model_invoke(&input, &output);
        printf("%d ", output);
    }
    model_reset();
    model_invoke(&input, &output);
    printf("%d ", output);
    return 0;
}
"""


def test_states_of_two_streams_are_separate_and_can_begin_again(compiled, counter, tmp_path) -> None:
    program = compiled.build(generate_c(counter), tmp_path, *SANITIZERS, main=RESET_MAIN)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert printed == "4 6 6 6 8 4 6 8 4 "


def test_the_state_counts_as_ram_and_belongs_to_the_layout(counter) -> None:
    source = generate_c(counter)
    assert "#define MODEL_STATE_BYTES 8\n" in source.files["model.h"]
    assert source.ram_bytes == source.arena_bytes + 8 + 4 * len(source.parts)
    assert (
        source.parts[0] == "model" and ".initial_state0 = {\n        2,\n" in source.files["model_weights.c"]
    )
    (entry,) = plan_state(read_quantized_model(counter))
    assert (entry.offset, entry.bytes, entry.size) == (0, 8, 1)


@pytest.mark.parametrize("seed", range(12))
def test_lstm_and_svdf_match_tflite_micro(compiled, graphs, random_models, tmp_path, seed) -> None:
    check_sequence(compiled, random_models.make_recurrent_model(graphs, seed), tmp_path, seed)


def check_sequence(compiled, model, tmp_path, seed) -> None:
    """Check the bytes of one inference after another."""
    network = read_quantized_model(model)
    shape = network.get_tensor(network.inputs[0]).shape[1:]
    x = np.random.default_rng(seed).integers(-128, 128, (STEPS, *shape)).astype(np.int8)
    expected = compiled.run_micro(model, x)
    assert len(np.unique(expected)) > 2, "the test's values give one output"
    for optimize in ("speed", "ram"):
        program = compiled.build(generate_c(model, optimize=optimize), tmp_path / optimize, *SANITIZERS)
        np.testing.assert_array_equal(compiled.run(program, x, expected.shape[1])[0], expected)


@pytest.mark.parametrize("seed", [*range(4), *range(5, 13)])  # seed 4 gives one output
def test_streaming_models_match_tflite_micro(compiled, graphs, random_models, tmp_path, seed) -> None:
    check_sequence(compiled, random_models.make_streaming_model(graphs, seed), tmp_path, seed)


def test_a_variable_that_no_subgraph_sets_begins_at_its_zero_point(compiled, graphs, tmp_path) -> None:
    tensors = [graphs.T((1, 1), *Q), graphs.make_handle(), graphs.T((1, 1), *Q), graphs.T((1, 1), *Q)]
    operators = [
        graphs.name_variable("sum", 1),
        graphs.Op("READ_VARIABLE", (1,), (2,)),
        graphs.Op("ADD", (0, 2), (3,), {}, "Add"),
        graphs.Op("ASSIGN_VARIABLE", (1, 3), ()),
    ]
    model = graphs.make_tflite(tensors, operators)
    x = np.array([[-1], [1]], np.int8)
    assert compiled.run_micro(model, x).tolist() == [[-1], [3]]
    program = compiled.build(generate_c(model), tmp_path, *SANITIZERS)
    assert compiled.run(program, x, 1)[0].tolist() == [[-1], [3]]


def test_first_values_that_are_computed_are_refused(graphs) -> None:
    tensors = [graphs.T((1, 1), *Q), graphs.make_handle(), graphs.T((1, 1), *Q), graphs.T((1, 1), *Q)]
    late = [
        graphs.name_variable("sum", 1),
        graphs.Op("READ_VARIABLE", (1,), (2,)),
        graphs.Op("CALL_ONCE", (), (), {"initSubgraphIndex": 1}, "CallOnce"),
        graphs.Op("ADD", (0, 2), (3,), {}, "Add"),
        graphs.Op("ASSIGN_VARIABLE", (1, 3), ()),
    ]
    initial = {"sum": graphs.T((1, 1), *Q, np.zeros((1, 1), np.int8))}
    with pytest.raises(
        ExportError, match=r"variable sum is used before CALL_ONCE .* convert the model again"
    ):
        generate_c(graphs.make_tflite(tensors, late, initial=initial))
    computed = {"sum": graphs.T((1, 1), *Q)}
    with pytest.raises(ExportError, match=r"come from ASSIGN_VARIABLE, expected constants"):
        generate_c(graphs.make_tflite(tensors, [late[2], *late[:2], *late[3:]], initial=computed))


def test_a_variable_of_two_sizes_is_refused(graphs) -> None:
    tensors = [graphs.T((1, 2), *Q), graphs.make_handle(), graphs.T((1, 1), *Q), graphs.T((1, 2), *Q)]
    operators = [
        graphs.name_variable("sum", 1),
        graphs.Op("READ_VARIABLE", (1,), (2,)),
        graphs.Op("ADD", (0, 2), (3,), {}, "Add"),
        graphs.Op("ASSIGN_VARIABLE", (1, 3), ()),
    ]
    with pytest.raises(ExportError, match=r"variable sum has 2 values .* and 1 of type INT8, expected one"):
        generate_c(graphs.make_tflite(tensors, operators))


def make_lstm(graphs, random_models, **changes):
    """An LSTM of 4 units over 2 steps of 3 features, with other inputs of the operator at some positions."""
    made = random_models.Graph(graphs=graphs, rng=np.random.default_rng(0))
    tip = made.add_lstm(made.add_tensor((1, 2, 3)), 4)
    operator = made.operators[-1]
    inputs = tuple(changes.get(f"input{i}", index) for i, index in enumerate(operator.inputs))
    made.operators[-1] = replace(
        operator, inputs=inputs, options={**operator.options, **changes.get("options", {})}
    )
    return graphs.make_tflite(made.tensors, made.operators, outputs=(tip,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input9": 1}, r"has peephole connections; use a plain LSTM"),
        ({"input16": 1}, r"has a projection; use a plain LSTM"),
        ({"input20": 1}, r"has a layer normalization; use a plain LSTM"),
        ({"options": {"fusedActivationFunction": 1}}, r"has another activation than tanh; use a plain LSTM"),
        (
            {"input5": 1},
            r"has weights of type INT8, shape \(4, 3\).*expected int8 constants of shape \(4, 4\)",
        ),
        ({"input1": -1}, r"lacks inputs; the model is damaged"),
        ({"input19": 13}, r"has a state of INT8 and INT8, expected variables of INT8 and INT16"),
    ],
)
def test_other_forms_of_lstm_are_refused(graphs, random_models, changes, message) -> None:
    generate_c(make_lstm(graphs, random_models))
    with pytest.raises(ExportError, match=rf"UNIDIRECTIONAL_SEQUENCE_LSTM \(t\d+\) {message}"):
        generate_c(make_lstm(graphs, random_models, **changes))


def test_export_states_the_size_of_the_state(compiled, counter, tmp_path) -> None:
    model = tmp_path / "counter.tflite"
    model.write_bytes(counter)
    out = tmp_path / "out"
    done = CliRunner().invoke(export, [str(model), "-o", str(out), "--target", "host"])
    assert done.exit_code == 0 and "state between inferences: 8 bytes" in done.output, done.output
    assert "constexpr int kModelVariables = 1;" in (out / "tflm" / "model_ops.h").read_text()
    assert CliRunner().invoke(export, ["verify", str(out)]).exit_code == 0
