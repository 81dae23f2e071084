"""Describes a plan from its flatbuffers, without TensorFlow."""

from collections import Counter
from typing import Any

import numpy as np

from edgefl.base.errors import PlanError
from edgefl.program.plan.normalization import NORMALIZATION_KEYS, UNMEASURED, has_placeholders
from edgefl.program.plan.spec import Plan, SignatureSpec, TensorSpec
from edgefl.program.plan.tflite import Subgraph, read_model


def inspect_plan(plan: Plan) -> dict[str, Any]:
    """Return the content of a plan as a report for JSON.

    Returns:
        The id, the model and the algorithm with their options, the augmentation, unit and layout of the
            samples, sizes in bytes and the shapes of the weights. `process_mb` is an estimate of the memory
            of a device's process in MB of 10^6 bytes. Also the tensors of each signature and how often it has
            each operator.

    Raises:
        PlanError: the program lacks a signature of the plan.
        ModelFileError: the program is damaged.
    """
    spec = plan.spec
    program = read_model(plan.program, "plan.tflite")
    try:
        ops = {s.name: _count_ops(program.subgraphs[program.signatures[s.name]]) for s in spec.signatures}
    except (KeyError, IndexError) as error:
        raise PlanError(
            f"plan.tflite has no signature {error}, expected the signatures of plan.json: it belongs to "
            "another plan; build the plan again"
        ) from error
    return {
        "id": plan.id,
        "model": spec.model,
        "algorithm": spec.algorithm,
        "options": dict(spec.options),
        "model_options": {
            **spec.model_options,
            **(dict.fromkeys(NORMALIZATION_KEYS, UNMEASURED) if has_placeholders(spec) else {}),
        },
        "augmentation": dict(spec.augmentation),
        "samples": dict(spec.samples),
        "input_shape": list(spec.input_shape),
        "num_classes": spec.num_classes,
        "num_weights": _count_weights(spec.weights),
        "weights_bytes": 4 * _count_weights(spec.weights),
        "program_bytes": len(plan.program),
        "template_bytes": len(plan.template),
        "process_mb": spec.process_mb,
        "weights": _list_shapes(spec.weights),
        "signatures": {s.name: _describe_signature(s) | {"ops": ops[s.name]} for s in spec.signatures},
    }


def render_plan(report: dict[str, Any]) -> str:
    """Return the report of `inspect_plan` as text for a terminal."""
    shape = "x".join(map(str, report["input_shape"]))
    lines = [
        f"plan {report['id'][:12]}: {report['model']} ({report['num_weights']:,} weights, {shape} -> "
        f"{report['num_classes']}) for {report['algorithm']}",
        ", ".join(f"{part} {report[f'{part}_bytes']:,} bytes" for part in ("program", "template", "weights")),
        "weights " + ", ".join(f"{name}{tuple(shape)}" for name, shape in report["weights"].items()),
    ]
    if report["process_mb"]:  # plans of an older edgefl do not state it
        lines.append(f"a device needs about {report['process_mb']} MB of memory to train")
    for title, key in (
        ("model options", "model_options"),
        ("augmentation", "augmentation"),
        ("samples", "samples"),
    ):
        if report[key]:
            lines.append(f"{title}: " + ", ".join(f"{name} {value}" for name, value in report[key].items()))
    for name, signature in report["signatures"].items():
        data = ", ".join(f"{key}{tuple(value)}" for key, value in signature["data"].items())
        size, part_size = signature["batch_size"], signature["call_size"]
        parts = f", batches of {size} in parts of {part_size}" if part_size < size else ""
        lines.append(f"{name}: {signature['kind']}, {data} -> {signature['gives']}{parts}")
        for part in ("trained", "frozen", "noise"):
            if signature[part]:
                lines.append(f"  {part}: " + ", ".join(signature[part]))
        if signature["hyper"]:
            lines.append(
                "  defaults: " + ", ".join(f"{key} {value:g}" for key, value in signature["hyper"].items())
            )
        ops = signature["ops"]
        lines.append(f"  {sum(ops.values())} ops: " + ", ".join(f"{count} {op}" for op, count in ops.items()))
    return "\n".join(lines)


def _describe_signature(signature: SignatureSpec) -> dict[str, Any]:
    gives = (
        f"{signature.out.shape}"
        if signature.out
        else f"loss, {len(signature.trained)} weights, {len(signature.slots)} slots"
    )
    return {
        "kind": signature.kind,
        "batch_size": signature.batch_size,
        "call_size": signature.call_size,
        "data": _list_shapes(signature.data),
        "trained": _list_shapes(signature.trained),
        "frozen": _list_shapes(signature.frozen),
        "slots": _list_shapes(signature.slots),
        "noise": _list_shapes(signature.noise),
        "hyper": dict(signature.hyper),
        "gives": gives,
    }


def _count_ops(graph: Subgraph) -> dict[str, int]:
    counts = Counter(operator.name for operator in graph.operators)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _count_weights(specs: tuple[TensorSpec, ...]) -> int:
    return sum(int(np.prod(spec.shape, dtype=int)) for spec in specs)


def _list_shapes(specs: tuple[TensorSpec, ...]) -> dict[str, list[int]]:
    return {spec.name: list(spec.shape) for spec in specs}
