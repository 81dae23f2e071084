"""Generates C99 from an int8 .tflite, with the same output bytes as TensorFlow Lite Micro.

The C uses no malloc, no libc and no floating point. Its buffers are static.

The gate runs first. An expert with a gate value of zero is skipped: its product would be the zero point,
which is stored instead. The constants of each part are one struct behind a table of pointers. An update can
therefore replace a part if the layout is the same.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.tasks.samples import SAMPLES_METADATA_NAME, decode_samples
from edgefl.program.plan.tflite import read_metadata
from firmware_export.codegen.buffers import MemoryPlan, align, limit_scratch, plan_buffers
from firmware_export.codegen.c_anomaly import make_network_detector
from firmware_export.codegen.c_ends import join_ends, list_ends
from firmware_export.codegen.c_layers import build_layers
from firmware_export.codegen.c_loops import FoldedLayers, fold_steps, list_planned_layers
from firmware_export.codegen.c_movement import TensorView, find_views
from firmware_export.codegen.c_state import StateEntry, list_arena_bytes, plan_state
from firmware_export.codegen.c_text import (
    AssembledModel,
    order_fields,
    render_model_c,
    render_model_h,
    render_model_weights_c,
)
from firmware_export.codegen.layer import ELEMENT_BYTES, Field
from firmware_export.codegen.lint import lint
from firmware_export.codegen.mixture_structure import MixtureStructure, find_parts
from firmware_export.codegen.moves import add_moves
from firmware_export.quantize.anomaly import read_model_task
from firmware_export.tflite.quantized_model import QuantizedModel, read_quantized_model

OPTIMIZE_SPEED = "speed"
OPTIMIZE_RAM = "ram"


@dataclass(frozen=True)
class LayerCost:
    """The cost of one layer of the generated C.

    Attributes:
        name: C identifier of the layer.
        op: name of its operator.
        part: part that it belongs to.
        macs: multiply-accumulates of one inference.
        weight_bytes: size of its constants in bytes.
        output_bytes: size of its output in bytes.
        instructions: instructions of one inference. 0 if they were not measured.
    """

    name: str
    op: str
    part: str
    macs: int
    weight_bytes: int
    output_bytes: int
    instructions: int = 0


@dataclass(frozen=True)
class CSource:
    """The generated C of a model.

    Attributes:
        files: text of model.h, model.c and model_weights.c by name.
        ram_bytes: size of the arena, which contains input and output, of the state, and of the table of
            parts, with pointers of four bytes.
        arena_bytes: size of the arena in bytes.
        state_bytes: size of what the model keeps from one inference to the next, in bytes.
        bound_bytes: lower bound of the arena in bytes: the most activations that live at the same time, in
            this order of layers, without scratch memory. Bytes that an input and an output share count once.
        weight_bytes: size of the constants in bytes.
        layers: cost of each layer, in the order of their run.
        parts: names of the parts in the order of MODEL_PARTS.
        images: bytes of each part's struct on a little-endian target, by name.
        layout: MODEL_LAYOUT, a digest of operators, shapes and structs.
    """

    files: Mapping[str, str]
    ram_bytes: int
    arena_bytes: int
    state_bytes: int
    bound_bytes: int
    weight_bytes: int
    layers: tuple[LayerCost, ...]
    parts: tuple[str, ...]
    images: Mapping[str, bytes]
    layout: str

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Size of each part in flash, in bytes."""
        return tuple(len(self.images[part]) for part in self.parts)


def generate_c(
    model: bytes,
    *,
    threshold: float = 0.0,
    labels: Sequence[str] = (),
    optimize: str = OPTIMIZE_SPEED,
) -> CSource:
    """Return the C of a model.

    Args:
        model: an int8 .tflite. If it contains its task, see `edgefl.base.tasks.detector`, the C gets the
            functions of that task instead of `model_classify`.
        threshold: gate value below which an expert is skipped. It must be below 1 / experts. An expert with
            gate value zero is always skipped.
        labels: name of each output, for model.h. Empty for none.
        optimize: OPTIMIZE_SPEED, or OPTIMIZE_RAM for a smaller arena and more instructions.

    Raises:
        ExportError: the model cannot be read, an operator has no kernel, the threshold is out of range, or
            the number of labels is wrong. The error names the operator and its layer.
    """
    network = read_quantized_model(model)
    findings = lint(network)
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise ExportError(f"the model cannot become C: {findings[0]}{more}")
    inputs, outputs = (list_ends(network, indices) for indices in (network.inputs, network.outputs))
    check_labels(labels, [end.tensor.size for end in outputs])
    network = join_ends(network)
    task = read_model_task(model)
    structure = find_parts(network)
    try:
        aliases = find_views(network)
    except (ArithmeticError, LookupError, AttributeError, TypeError, ValueError) as error:
        raise ExportError(
            f"a slice or reshape of the model lacks what it needs: {error!r}; export the model again"
        ) from error
    views = {t.index: aliases.get(t.index, TensorView(t.index, 0)) for t in network.tensors}
    variables = [variable.tensor for variable in network.variables]
    folded = fold_steps(
        build_layers(network, structure, aliases),
        views,
        {t.index: t.bytes for t in network.tensors},
        (*network.inputs, *network.outputs, *structure.gate, *variables),
    )
    folded = _limit_scratch(network, folded, least=optimize == OPTIMIZE_RAM)
    if optimize == OPTIMIZE_RAM:
        network, folded = add_moves(network, folded)
    layers = folded.layers
    fields: dict[str, list[Field]] = {name: [] for name in structure.names}
    for part, layer in layers:
        fields[part] += layer.fields
    if structure.gate:
        fields["gate"].insert(0, Field("skip", "int8_t", _compute_skip_levels(network, structure, threshold)))
    elif threshold:
        raise ExportError(
            f"a skip threshold of {threshold} needs a mixture with a gate, but this model has no gate; use 0"
        )
    state = plan_state(network)
    fields[structure.names[0]] += [entry.initial for entry in state]
    structure = replace(
        structure,
        names=tuple(name for name in structure.names if fields[name] or any(p == name for p, _ in layers)),
    )
    packed = {part: tuple(order_fields(fields[part])) for part in structure.names}
    addresses, plan = _assign_addresses(network, folded, state)
    arena_bytes = plan.arena_bytes + align(len(structure.gate))
    state_bytes = sum(entry.bytes for entry in state)
    ram_bytes = arena_bytes + state_bytes + 4 * len(structure.names)
    assembled = AssembledModel(
        network=network,
        inputs=inputs,
        outputs=outputs,
        structure=structure,
        layers=layers,
        loops=folded.loops,
        fields=packed,
        addresses=addresses,
        plan=plan,
        state=state,
        arena_bytes=arena_bytes,
        ram_bytes=ram_bytes,
        layout=_hash_layout(network, structure, folded, packed),
        sha256=hashlib.sha256(model).hexdigest(),
        labels=tuple(labels),
        task=task,
        detector=make_network_detector(network, task) if task is not None and task.is_anomaly else None,
        samples=decode_samples(read_metadata(model, SAMPLES_METADATA_NAME) or b""),
    )
    costs = tuple(
        LayerCost(
            name=layer.name,
            op=layer.op,
            part=part,
            macs=layer.macs,
            weight_bytes=sum(f.bytes for f in layer.fields),
            output_bytes=network.get_tensor(layer.output).bytes,
        )
        for part, layer in layers
    )
    files = {
        "model.h": render_model_h(assembled),
        "model.c": render_model_c(assembled),
        "model_weights.c": render_model_weights_c(assembled),
    }
    images = {part: encode_part_image(part_fields) for part, part_fields in packed.items()}
    return CSource(
        files=files,
        ram_bytes=ram_bytes,
        arena_bytes=arena_bytes,
        state_bytes=state_bytes,
        bound_bytes=plan.bound_bytes,
        weight_bytes=sum(map(len, images.values())),
        layers=costs,
        parts=structure.names,
        images=images,
        layout=assembled.layout,
    )


def check_labels(labels: Sequence[str], sizes: Sequence[int]) -> None:
    """Check that there is a label for each value of a model's only output, or none at all.

    Args:
        labels: name of each value.
        sizes: number of values of each output.

    Raises:
        ExportError: the numbers differ, or there are several outputs.
    """
    if labels and len(sizes) > 1:
        raise ExportError(
            f"there are {len(labels)} labels for a model with {len(sizes)} outputs, expected one output; "
            "leave the labels out"
        )
    outputs = sizes[0]
    if labels and len(labels) != outputs:
        raise ExportError(
            f"there are {len(labels)} labels, expected {outputs}, one for each output of the model; "
            + (
                "a model with one output, such as a sigmoid, has no classes: leave the labels out"
                if outputs == 1
                else "write one per line"
            )
        )


def encode_part_image(fields: Sequence[Field]) -> bytes:
    """Return the bytes of a part's struct on a little-endian target."""
    return b"".join(np.asarray(f.values, f"<i{ELEMENT_BYTES.get(f.ctype, 4)}").tobytes() for f in fields)


def _compute_skip_levels(
    network: QuantizedModel, structure: MixtureStructure, threshold: float
) -> tuple[int, ...]:
    """Return the highest gate value, as int8, at which each expert is skipped."""
    experts = len(structure.gate)
    if not 0 <= threshold < 1 / experts:
        raise ExportError(
            f"the skip threshold is {threshold}, expected 0 <= threshold < {1 / experts:.3g}: one of "
            f"{experts} experts must run"
        )
    levels = []
    for index in structure.gate:
        tensor = network.get_tensor(index)
        scale = float(tensor.scale[0])
        steps = min(math.ceil(threshold / scale) - 1, math.floor(1 / experts / scale) - 2)
        levels.append(min(tensor.zero_point + max(steps, 0), 127))
    return tuple(levels)


def _limit_scratch(network: QuantizedModel, folded: FoldedLayers, *, least: bool) -> FoldedLayers:
    """Return the layers with less scratch memory where it would raise the arena."""
    planned, positions = list_planned_layers(folded)
    bases = {index: view.base for index, view in folded.views.items()}
    sizes = list_arena_bytes(network)
    result = bases[network.outputs[0]]
    limited = limit_scratch(planned, bases, sizes, network.inputs[0], result, least=least)
    chosen = tuple(
        (part, limited[position]) for (part, _), position in zip(folded.layers, positions, strict=True)
    )
    return replace(folded, layers=chosen)


def _assign_addresses(
    network: QuantizedModel, folded: FoldedLayers, state: Sequence[StateEntry]
) -> tuple[dict[int, str], MemoryPlan]:
    """Return the C expression of each activation's address, and the memory plan."""
    view_of = folded.views
    sizes = list_arena_bytes(network)
    (entry,) = network.inputs
    (result,) = network.outputs
    last = view_of[result]
    if last.base == entry or sizes[last.base] != sizes[result]:
        raise ExportError(
            "the model's output is its input or a slice of another tensor; end the model with a layer that "
            "computes"
        )
    planned, positions = list_planned_layers(folded)
    plan = plan_buffers(planned, {i: view.base for i, view in view_of.items()}, sizes, entry, last.base)
    plan = replace(plan, scratch_offsets=tuple(plan.scratch_offsets[i] for i in positions))
    names = {entry: "input", last.base: "output", **{item.tensor: item.address for item in state}}
    addresses = {}
    for index, view in view_of.items():
        moving = f" + step * {view.stride}" if view.stride else ""
        if view.base in names:
            addresses[index] = names[view.base] + (f" + {view.offset}" if view.offset else "") + moving
        elif view.base in plan.offsets:
            offset = plan.offsets[view.base] + view.offset
            addresses[index] = (f"arena + {offset}" if offset else "arena") + moving
    return addresses, plan


def _hash_layout(
    network: QuantizedModel,
    structure: MixtureStructure,
    folded: FoldedLayers,
    packed: Mapping[str, Sequence[Field]],
) -> str:
    """Return the SHA-256 of operators, shapes, loops and struct members.

    It does not depend on the names of layers or on the values of constants.
    """
    content: dict[str, object] = {
        "layers": [
            [
                part,
                layer.op,
                re.sub(rf"\b{layer.name}_", "", layer.call),
                layer.shape,
                [network.get_tensor(i).shape for i in layer.inputs],
            ]
            for part, layer in folded.layers
        ],
        "parts": {
            part: [[f.ctype, len(f.values)] for f in part_fields] for part, part_fields in packed.items()
        },
        "gate": len(structure.gate),
    }
    if network.variables:
        content["state"] = [network.get_tensor(variable.tensor).shape for variable in network.variables]
    if folded.loops:
        content["loops"] = [
            [loop.first, loop.length, loop.count, [folded.views[i].stride for i in loop.lasting]]
            for loop in folded.loops
        ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
