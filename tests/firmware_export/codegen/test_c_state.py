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
        graphs.Op(
            name="CALL_ONCE",
            inputs=(),
            outputs=(),
            options={"initSubgraphIndex": 1},
            options_class="CallOnce",
        ),
        graphs.name_variable("voice/sum", 1),
        graphs.Op("READ_VARIABLE", (1,), (2,)),
        graphs.Op(name="ADD", inputs=(0, 2), outputs=(3,), options={}, options_class="Add"),
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
        graphs.Op(name="ADD", inputs=(0, 2), outputs=(3,), options={}, options_class="Add"),
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
        graphs.Op(
            name="CALL_ONCE",
            inputs=(),
            outputs=(),
            options={"initSubgraphIndex": 1},
            options_class="CallOnce",
        ),
        graphs.Op(name="ADD", inputs=(0, 2), outputs=(3,), options={}, options_class="Add"),
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
        graphs.Op(name="ADD", inputs=(0, 2), outputs=(3,), options={}, options_class="Add"),
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


def test_export_of_every_stateful_kernel_is_verified_and_profiled(graphs, random_models, tmp_path) -> None:
    model = tmp_path / "model.tflite"
    model.write_bytes(random_models.make_every_stateful_kernel_model(graphs))
    out = tmp_path / "out"
    run = CliRunner().invoke
    done = run(export, [str(model), "-o", str(out), "--target", "cortex-m4", "--samples", "20"])
    assert done.exit_code == 0 and "its inputs are one sequence" in done.output, done.output
    assert run(export, ["verify", str(out)]).exit_code == 0
    assert "SVDF" in run(export, ["profile", str(out)]).output
    assert "`model_reset()` begins a new sequence" in (out / "c" / "README.md").read_text()


def make_values(graphs, count):
    return [graphs.T((1, 2), *Q) for _ in range(count)]


def add(graphs, a, b, output):
    return graphs.Op(name="ADD", inputs=(a, b), outputs=(output,), options={}, options_class="Add")


def read(graphs, output=2):
    return graphs.Op("READ_VARIABLE", (1,), (output,))


@pytest.mark.parametrize(
    ("operators", "outputs", "message"),
    [
        (lambda g: [add(g, 0, 0, 1), add(g, 1, 1, 1)], (1,), "ADD writes a tensor that has values already"),
        (lambda g: [add(g, 0, 0, 0)], (0,), "ADD writes a tensor that has values already"),
        (lambda g: [g.Op("RELU", (0,), (-1,))], (1,), "RELU writes a tensor that has values already"),
        (lambda g: [g.Op("CALL_ONCE", (), ())], (0,), "truncated or damaged"),
        (lambda g: [g.Op("READ_VARIABLE", (0,), (2,)), add(g, 0, 2, 3)], (3,), "no VAR_HANDLE before it"),
    ],
)
def test_damaged_graphs_are_refused(graphs, operators, outputs, message) -> None:
    with pytest.raises(ExportError, match=message):
        generate_c(graphs.make_tflite(make_values(graphs, 4), operators(graphs), outputs=outputs))


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        (lambda g: [add(g, 0, 1, 2)], "ADD reads the state of another layer"),
        (lambda g: [g.Op("RESHAPE", (0,), (1,)), add(g, 0, 0, 2)], "RESHAPE writes a tensor"),
    ],
)
def test_plain_operators_do_not_touch_the_state(graphs, operators, message) -> None:
    tensors = make_values(graphs, 3)
    tensors[1] = replace(tensors[1], is_variable=True)
    lstm = graphs.Op(
        name="SVDF", inputs=(0, -1, -1, -1, 1), outputs=(2,), options={"rank": 1}, options_class="SVDF"
    )  # makes the tensor a state
    with pytest.raises(ExportError, match=message):
        generate_c(
            graphs.make_tflite(
                [*tensors, *make_values(graphs, 1)], [*operators(graphs), replace(lstm, outputs=(3,))]
            )
        )


@pytest.mark.parametrize("ends", [((0,), (1,)), ((1,), (2,))])
def test_the_state_is_no_input_or_output(graphs, ends) -> None:
    tensors = make_values(graphs, 3)
    tensors[1] = replace(tensors[1], is_variable=True)
    svdf = graphs.Op(
        name="SVDF", inputs=(1, -1, -1, -1, 1), outputs=(2,), options={"rank": 1}, options_class="SVDF"
    )
    with pytest.raises(ExportError, match="of the model is its state or a constant"):
        generate_c(graphs.make_tflite(tensors, [svdf], inputs=ends[0], outputs=ends[1]))


def test_a_variable_without_values_is_refused(graphs) -> None:
    tensors = make_values(graphs, 4)
    tensors[1] = graphs.make_handle()
    operators = [graphs.name_variable("sum", 1), read(graphs), add(graphs, 0, 2, 3)]
    with pytest.raises(ExportError, match="variable sum never gets values, expected an ASSIGN_VARIABLE"):
        generate_c(graphs.make_tflite(tensors, operators))


def test_an_assignment_without_a_value_is_refused(graphs) -> None:
    tensors = make_values(graphs, 4)
    tensors[1] = graphs.make_handle()
    operators = [
        graphs.name_variable("sum", 1),
        read(graphs),
        add(graphs, 0, 2, 3),
        graphs.Op("ASSIGN_VARIABLE", (1, -1), ()),
    ]
    with pytest.raises(ExportError, match="ASSIGN_VARIABLE has no value"):
        generate_c(graphs.make_tflite(tensors, operators))


def test_a_huge_variable_is_refused_before_it_takes_memory(graphs) -> None:
    tensors = make_values(graphs, 2)
    huge = graphs.T(shape=(1 << 30,), is_variable=True)
    svdf = graphs.Op(
        name="SVDF", inputs=(0, -1, -1, -1, 2), outputs=(1,), options={"rank": 1}, options_class="SVDF"
    )
    with pytest.raises(ExportError, match=r"t2 has 1,073,741,824 values, expected 1 to 16,777,216"):
        generate_c(graphs.make_tflite([*tensors, huge], [svdf], outputs=(1,)))


@pytest.mark.parametrize(
    "names",
    [((b"a/b", b"c"), (b"a", b"b/c")), ((b"", b"a/b"), (b"a", b"b")), ((b"", b"\xff"), (b"", b"\xfe"))],
)
def test_variables_of_like_names_are_separate(compiled, graphs, tmp_path, names) -> None:
    """The sum of the inputs is in one variable, and the last input in the other."""
    tensors = make_values(graphs, 8)
    tensors[1] = tensors[2] = graphs.make_handle()
    operators = [
        graphs.Op(
            name="VAR_HANDLE",
            inputs=(),
            outputs=(1 + number,),
            options={"container": container, "sharedName": name},
            options_class="VarHandle",
        )
        for number, (container, name) in enumerate(names)
    ]
    operators += [
        graphs.Op("READ_VARIABLE", (1,), (3,)),
        graphs.Op("READ_VARIABLE", (2,), (4,)),
        add(graphs, 0, 3, 5),
        graphs.Op("ASSIGN_VARIABLE", (1, 5), ()),
        graphs.Op("ASSIGN_VARIABLE", (2, 0), ()),
        add(graphs, 4, 5, 6),
        add(graphs, 6, 0, 7),
    ]
    check_sequence(compiled, graphs.make_tflite(tensors, operators), tmp_path, 0)


def test_a_state_whose_values_nobody_reads_compiles(compiled, graphs, tmp_path) -> None:
    tensors = make_values(graphs, 4)
    tensors[1] = graphs.make_handle()
    operators = [
        graphs.name_variable("sum", 1),
        read(graphs),
        add(graphs, 0, 0, 3),
        graphs.Op("ASSIGN_VARIABLE", (1, 3), ()),
    ]
    check_sequence(compiled, graphs.make_tflite(tensors, operators), tmp_path, 0)


@pytest.mark.parametrize(
    ("position", "change", "message"),
    [
        (19, {"scales": 2.0**-40}, r"has cells with a scale of 9\.09\d*e-13, expected 2\^-24 to 1"),
        (
            12,
            {"data": np.full(4, 2**31 - 9, np.int32)},
            r"a sum of up to 2,147,\d+,\d+, which overflows 32 bits",
        ),
        (18, {"data": np.zeros((1, 4), np.int8)}, r"expected variables of INT8 and INT16"),
        (18, {"shape": (1, 2, 2)}, r"has states and an output of the shapes"),
    ],
)
def test_values_beyond_the_range_of_an_lstm_are_refused(
    graphs, random_models, position, change, message
) -> None:
    made = random_models.Graph(graphs=graphs, rng=np.random.default_rng(0))
    tip = made.add_lstm(made.add_tensor((1, 2, 3)), 4)
    index = made.operators[-1].inputs[position]
    made.tensors[index] = replace(made.tensors[index], **change)
    with pytest.raises(ExportError, match=message):
        generate_c(graphs.make_tflite(made.tensors, made.operators, outputs=(tip,)))


def test_cells_begin_at_zero_whatever_their_zero_point(compiled, graphs, random_models, tmp_path) -> None:
    made = random_models.Graph(graphs=graphs, rng=np.random.default_rng(0))
    tip = made.add_lstm(made.add_tensor((1, 2, 3)), 4)
    index = made.operators[-1].inputs[19]
    made.tensors[index] = replace(made.tensors[index], zero=3000)
    check_sequence(compiled, graphs.make_tflite(made.tensors, made.operators, outputs=(tip,)), tmp_path, 0)
