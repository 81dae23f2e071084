"""The estimated memory of a process that trains, against a graph by hand and against real processes."""

import json
import subprocess
import sys

import numpy as np
import pytest

from edgefl.program.plan.memory import PROCESS_MB, RUNTIME_FACTOR, WEIGHT_COPIES, estimate_process_mb
from edgefl.program.plan.spec import PlanSpec, TensorSpec, load_plan
from edgefl.program.plan.tflite import ModelFile, Operator, Subgraph, TfliteTensor, read_model


def make_tensor(index, size, data=None):
    empty = np.empty(0, np.float32)
    return TfliteTensor(
        index=index,
        name=f"tensor{index}",
        shape=(size,),
        dtype="FLOAT32",
        scale=empty,
        zero_points=(0,),
        axis=0,
        data=data,
    )


def make_operator(inputs, outputs):
    return Operator(name="ADD", custom="", version=1, inputs=inputs, outputs=outputs, options={})


def make_graph(sizes, operators, inputs, outputs, constants=()):
    tensors = tuple(
        make_tensor(i, size, np.zeros(size, np.float32) if i in constants else None)
        for i, size in enumerate(sizes)
    )
    return Subgraph(
        tensors=tensors,
        operators=tuple(make_operator(*pair) for pair in operators),
        inputs=inputs,
        outputs=outputs,
    )


def make_spec(*shapes):
    weights = tuple(TensorSpec(f"w{i}", shape) for i, shape in enumerate(shapes))
    return PlanSpec(
        model="m",
        algorithm="a",
        options={},
        input_shape=(4,),
        num_classes=2,
        weights=weights,
        signatures=(),
    )


def test_peak_counts_each_tensor_from_its_operator_to_its_last_reader():
    """Input 0 always counts. Operator 1 has the input, 1 and 2. Operator 2 has the input, 2, 3 and 4."""
    million = 1_000_000
    graph = make_graph(
        [million, 5 * million, 3 * million, 2 * million, million, 9 * million],
        [((0, 5, -1), (1,)), ((1,), (2,)), ((2,), (3, 4))],
        inputs=(0,),
        outputs=(4,),
        constants=(5,),
    )
    smaller = make_graph([million, million], [((0,), (1,))], (0,), (1,))
    program = ModelFile(subgraphs=(smaller, graph), signatures={}, bytes_behind=0)
    peak_mb = 4 * (1 + 5 + 3)
    assert estimate_process_mb(make_spec(), program) == pytest.approx(PROCESS_MB + RUNTIME_FACTOR * peak_mb)
    with_weights = estimate_process_mb(make_spec((1000, 1000), (500, 1000)), program)
    assert with_weights == pytest.approx(PROCESS_MB + RUNTIME_FACTOR * peak_mb + WEIGHT_COPIES * 4 * 1.5)


def test_tensor_that_nobody_reads_is_in_use_during_its_operator():
    graph = make_graph([10, 70, 20], [((0,), (1,)), ((0,), (2,))], (0,), (2,))
    program = ModelFile(subgraphs=(graph,), signatures={}, bytes_behind=0)
    assert estimate_process_mb(make_spec(), program) == pytest.approx(PROCESS_MB + RUNTIME_FACTOR * 320 / 1e6)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [0, 8])
def test_estimate_is_near_the_peak_of_a_real_process(micro_batch, tmp_path):
    (tmp_path / "federation.toml").write_text(
        '[model]\nname = "resnet20"\ninput_shape = [32, 32, 3]\nnum_classes = 10\n'
        f"[algorithm]\nbatch_size = 32\n[training]\nmicro_batch = {micro_batch}\n"
    )
    step = [sys.executable, "-m", "edgefl.cli.bench.step"]
    subprocess.run([*step, "build", tmp_path / "plan", tmp_path / "federation.toml"], check=True)
    done = subprocess.run(
        [*step, "litert", tmp_path / "plan", "2"], check=True, capture_output=True, text=True
    )
    plan = load_plan(tmp_path / "plan")
    estimate = estimate_process_mb(plan.spec, read_model(plan.program))
    assert json.loads(done.stdout.splitlines()[-1])["mb"] == pytest.approx(estimate, rel=0.15)
