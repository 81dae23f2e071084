"""Renders the text of model.h, model.c and model_weights.c from planned layers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from textwrap import indent

import numpy as np

from edgefl import __version__
from edgefl.base.tasks.detector import AnomalyDetector, ModelTask
from edgefl.base.tasks.samples import SamplesConfig
from firmware_export.codegen.buffers import MemoryPlan
from firmware_export.codegen.c_anomaly import render_detector_c, render_detector_h
from firmware_export.codegen.c_ends import ModelEnd
from firmware_export.codegen.c_loops import StepLoop
from firmware_export.codegen.c_state import StateEntry, render_state_c, render_state_h
from firmware_export.codegen.layer import ELEMENT_BYTES, STRUCTS, VALUE_RANGES, Field, Layer
from firmware_export.codegen.mixture_structure import MixtureStructure
from firmware_export.tflite.quantized_model import QuantizedModel

MAX_LINE_LENGTH = 120
KERNEL_ORDER = (
    "dsp",
    "limit",
    "products",
    "convolution",
    "run",
    "column",
    "column_products",
    "conv_2d_by_pixel",
    "conv_2d",
    "conv_2d_grouped",
    "depthwise_conv_2d",
    "transpose_conv",
    "fully_connected",
    "fully_connected_narrow",
    "sixteen_bits",
    "products_16",
    "output_16",
    "conv_2d_16",
    "inside",
    "depthwise_conv_2d_16",
    "fully_connected_16",
    "sigmoid",
    "sigmoid_values",
    "lstm",
    "svdf",
    "sums",
    "pool",
    "max_pool_2d",
    "max_pool_2d_16",
    "average_pool_2d",
    "average_pool_2d_16",
    "softmax",
    "softmax_16",
    "lookup",
    "rescale_values",
    "elementwise",
    "add",
    "add_16",
    "mul",
    "mul_16",
    "select",
    "prelu",
    "reduction",
    "mean",
    "mean_16",
    "resize_bilinear",
    "copy",
    "fill",
    "move",
)
"""Kernels in their order in model.c."""
PROFILE_C = """#ifdef MODEL_PROFILE /* a profiling build: its program gets a call at the end of each layer */
extern void model_profile(int layer);
#define LAYER_ENDS(number) model_profile(number)
#else
#define LAYER_ENDS(number) (void)0
#endif
"""
INVOKE_C = """void model_invoke(const {input} *input, {output} *output)
{{
    (void)model_run(model_arena, input, output);
}}
"""
INVOKE_WITH_STATE_C = """void model_invoke(const {input} *input, {output} *output)
{{
    if (!model_has_state) {{
        model_reset();
    }}
    (void)model_run(model_arena, &model_static_state, input, output);
}}
"""
ENDS_C = """{input} *model_input(void)
{{
    return ({input} *)(void *)((int8_t *)model_arena + MODEL_INPUT_OFFSET);
}}

{output} *model_output(void)
{{
    return ({output} *)(void *)((int8_t *)model_arena + MODEL_OUTPUT_OFFSET);
}}
"""
CLASSIFY_C = """int model_classify(const {input} *input)
{{
    {output} *const output = model_output();
    int best = 0;
    model_invoke(input, output);
    for (int i = 1; i < MODEL_OUTPUT_VALUES; i++) {{
        if (output[i] > output[best]) {{
            best = i;
        }}
    }}
    return best;
}}
"""
QUANTIZE_H = """/* The integer of a real value of the input{number}, ties to even. -ffast-math breaks it. */
static inline {ctype} model_quantize_input{number}(float value)
{{
    float steps = value / MODEL_INPUT{number}_SCALE;
    steps = steps > -4194304.0f ? steps : -4194304.0f;
    steps = steps < 4194304.0f ? steps : 4194304.0f;
    steps += 12582912.0f; /* a float of this size has no fraction, so the sum is rounded */
    steps = steps - 12582912.0f + (float)MODEL_INPUT{number}_ZERO_POINT;
    return ({ctype})(steps < {least}.0f ? {least}.0f : steps > {most}.0f ? {most}.0f : steps);
}}
"""
DEQUANTIZE_H = """/* The real value of an integer of the output{number}. */
static inline float model_dequantize_output{number}({ctype} value)
{{
    return MODEL_OUTPUT{number}_SCALE * (float)({value} - MODEL_OUTPUT{number}_ZERO_POINT);
}}
"""
END_C = """#ifdef MODEL_WITHOUT_MVE
#pragma clang attribute pop
#endif
"""


@dataclass(frozen=True)
class AssembledModel:
    """Everything that the text of the generated C needs.

    Attributes:
        network: the model, with one input and one output.
        inputs: the model's inputs.
        outputs: the model's outputs.
        structure: its parts.
        layers: part and layer of each kernel call, in the order of their run.
        loops: the loops over the steps of recurrent layers.
        fields: members of each part's struct, in order.
        addresses: C expression of each activation's address.
        plan: offsets in the arena.
        state: the model's variables.
        arena_bytes: size of the arena in bytes, with the gate values behind the plan.
        ram_bytes: size of the arena, the state and the table of parts, in bytes.
        layout: MODEL_LAYOUT.
        sha256: digest of the .tflite, in hexadecimal.
        labels: name of each output. Empty if the names are unknown.
        task: the model's task. None for a classification.
        detector: the detector of an anomaly task. None for another task.
        samples: unit and layout of the input. None if the model does not record them.
    """

    network: QuantizedModel
    inputs: tuple[ModelEnd, ...]
    outputs: tuple[ModelEnd, ...]
    structure: MixtureStructure
    layers: tuple[tuple[str, Layer], ...]
    loops: tuple[StepLoop, ...]
    fields: Mapping[str, tuple[Field, ...]]
    addresses: Mapping[int, str]
    plan: MemoryPlan
    state: tuple[StateEntry, ...]
    arena_bytes: int
    ram_bytes: int
    layout: str
    sha256: str
    labels: tuple[str, ...]
    task: ModelTask | None = None
    detector: AnomalyDetector | None = None
    samples: SamplesConfig | None = None

    @property
    def has_classes(self) -> bool:
        """Whether the answer is the class of the largest output."""
        return self.task is None and len(self.outputs) == 1

    @property
    def types(self) -> dict[str, str]:
        """C types of the values of the input and the output."""
        return {"input": self.inputs[0].ctype, "output": self.outputs[0].ctype}


def render_model_h(made: AssembledModel) -> str:
    """Return model.h."""
    structure = made.structure
    lines = [
        "/* Made by edgefl from a quantized .tflite. C99, needs only stdint.h. */",
        "#ifndef EDGEFL_MODEL_H",
        "#define EDGEFL_MODEL_H",
    ]
    lines += ["", "#include <stdint.h>", "", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    lines += [f'#define MODEL_SHA256 "{made.sha256}" /* of the .tflite */']
    lines += [f'#define MODEL_EDGEFL_VERSION "{__version__}"']
    for name, ends in (("INPUT", made.inputs), ("OUTPUT", made.outputs)):
        lines += render_ends(name, ends)
        if name == "INPUT" and made.samples is not None:
            lines += describe_input(made.samples)
    lines += [
        "/* The arena holds input, output, activations and scratch. RAM includes the table of parts"
        + (", and the state. */" if made.state else ". */"),
        f"#define MODEL_ARENA_BYTES {made.arena_bytes}",
        f"#define MODEL_RAM_BYTES {made.ram_bytes}",
    ]
    lines.append(f"#define MODEL_INPUT_OFFSET {made.plan.input_offset}")
    lines.append(f"#define MODEL_OUTPUT_OFFSET {made.plan.output_offset}")
    if structure.gate:
        lines.append(f"#define MODEL_GATE_OFFSET {made.plan.arena_bytes}")
    lines.append(f"#define MODEL_PARTS {len(structure.names)}")
    lines += [f"#define MODEL_PART_{name.upper()} {i}" for i, name in enumerate(structure.names)]
    lines += [f'#define MODEL_LAYOUT "{made.layout}"', ""]
    lines += [
        *([render_state_h(made.state)] if made.state else []),
        "/* Run one inference in the static arena, one at a time. To save RAM, pass model_input() and",
        "   model_output(), which lie in the arena. The inference then overwrites the input. */",
        "void model_invoke(const {input} *input, {output} *output);".format(**made.types),
        f"{made.types['input']} *model_input(void);",
        f"{made.types['output']} *model_output(void);",
        "/* The same in the caller's arena of MODEL_ARENA_BYTES, aligned to 8 bytes. Inferences in different",
        "   arenas may run at the same time. The static arena takes no RAM if only this function is used.",
        "   Return 0, or -1 without an inference if the arena is not aligned. */",
        f"int model_run({_list_run_parameters(made, 'arena', 'state')});",
    ]
    if made.detector is not None:
        lines += [render_detector_h(made.detector)]
    elif made.has_classes:
        lines += [
            "/* Return the class: the index of the largest output, or the lowest index of a tie. */",
            f"int model_classify(const {made.types['input']} *input);",
            "",
        ]
    if made.labels:
        lines += [
            f"/* Names of the {'classes' if made.has_classes else 'outputs'}, UTF-8. */",
            "extern const char *const model_labels[MODEL_OUTPUT_VALUES];",
            "",
        ]
    if structure.gate:
        lines += [
            "/* Gate value of each expert in the last inference, at MODEL_GATE_OFFSET of the arena. */",
            f"#define MODEL_EXPERTS {len(structure.gate)}",
        ]
        lines += ["extern int8_t *const model_gate;", ""]
    lines += [
        "/* Weights and quantization of each part. An update may point to another struct of the same "
        "layout. */"
    ]
    lines += [
        "extern const void *model_part[MODEL_PARTS];",
        "extern const uint32_t model_part_bytes[MODEL_PARTS];",
        "",
        render_structs({field.ctype for fields in made.fields.values() for field in fields}),
        "",
    ]
    for part, fields in made.fields.items():
        lines += [render_declaration(part, fields), ""]
    for end in made.inputs:
        least, most = VALUE_RANGES[end.tensor.dtype]
        lines.append(QUANTIZE_H.format(number=end.suffix, ctype=end.ctype, least=least, most=most))
    for end in made.outputs:
        value = "(int64_t)value" if end.tensor.dtype == "INT32" else "value"
        lines.append(DEQUANTIZE_H.format(number=end.suffix, ctype=end.ctype, value=value))
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


def render_ends(name: str, ends: Sequence[ModelEnd]) -> list[str]:
    """Return the macros of the inputs or outputs.

    Args:
        name: INPUT or OUTPUT.
    """
    lines = []
    if len(ends) > 1:
        total = sum(end.tensor.bytes for end in ends)
        lines += [
            f"/* {len(ends)} {name.lower()}s, one after another */",
            f"#define MODEL_{name}S {len(ends)}",
            f"#define MODEL_{name}_BYTES {total}",
            f"#define MODEL_{name}_VALUES {sum(end.tensor.size for end in ends)}",
        ]
    for end in ends:
        macro, tensor = f"MODEL_{name}{end.suffix}", end.tensor
        lines += [
            f"/* {tensor.name}: {format_dimensions(tensor.shape)}, {end.ctype}; value = scale * (integer - "
            "zero point) */",
            f"#define {macro}_BYTES {tensor.bytes}",
            f"#define {macro}_VALUES {tensor.size}",
            *([f"#define {macro}_START {end.start}"] if end.suffix else []),
            f"#define {macro}_SCALE {np.format_float_scientific(tensor.scale[0])}f",
            f"#define {macro}_ZERO_POINT ({tensor.zero_point})",
        ]
    return lines


def describe_input(samples: SamplesConfig) -> list[str]:
    """Return comments on how a sample becomes the input of the model: its unit and its channels.

    Args:
        samples: unit and layout that the model records.
    """
    if samples.scale == 1:
        unit = "The input is a sample without any scaling"
    elif samples.scale:
        unit = f"The input is a sample divided by {samples.scale:g}"
    else:
        unit = "The input is a sample, with 8-bit values such as pixels divided by 255"
    if samples.max_value:
        unit += f": values from {samples.min_value:g} to {samples.max_value:g}"
    lines = [unit]
    if samples.channels:
        names = ", ".join(samples.channels)
        printable = "".join(letter if letter.isprintable() else "?" for letter in names)
        lines.append(f"Channels in order: {printable.replace('*/', '* /').replace('/*', '/ *')}")
    return [f"/* {line}. */" for line in lines]


def render_model_weights_c(made: AssembledModel) -> str:
    """Return model_weights.c."""
    lines = ['#include "model.h"', ""]
    for part, fields in made.fields.items():
        lines += [render_definition(part, fields), ""]
    names = made.structure.names
    lines.append(f"const void *model_part[MODEL_PARTS] = {{{', '.join('&' + n for n in names)}}};")
    lines.append(
        f"const uint32_t model_part_bytes[MODEL_PARTS] = {{{', '.join(f'sizeof {n}' for n in names)}}};"
    )
    return "\n".join([*lines, ""])


def render_model_c(made: AssembledModel) -> str:
    """Return model.c, with the kernels that are used, a function for each part, and model_invoke."""
    used = {kernel for _, layer in made.layers for kernel in layer.kernels}
    used |= {"fill"} if made.structure.gate else set()
    used |= {
        kernel
        for entry in made.state
        for kernel in (("fill",) if len(entry.initial.values) == 1 else ("run", "copy"))
    }
    lines = ['#include "model.h"', "", PROFILE_C, read_c_template("loops"), read_c_template("base")]
    lines += [read_c_template(name) for name in KERNEL_ORDER if name in used]
    lines += [
        "static MODEL_ALIGNED uint64_t model_arena[MODEL_ARENA_BYTES / 8];",
    ]
    if made.structure.gate:
        lines.append("int8_t *const model_gate = (int8_t *)model_arena + MODEL_GATE_OFFSET;")
    lines.append("")
    for part in made.structure.names:
        if part != "mix":
            lines += [_render_part_function(made, part), ""]
    if made.labels:
        lines += ["const char *const model_labels[MODEL_OUTPUT_VALUES] = {"]
        lines += [f"    {quote_c_string(label)}," for label in made.labels]
        lines += ["};", ""]
    answer = [CLASSIFY_C.format(**made.types)] if made.has_classes else []
    if made.detector is not None:
        answer = [render_detector_c(made.detector)]
    invoke = INVOKE_C
    if made.state:
        lines.append(render_state_c(made.state, made.structure.names[0]))
        invoke = INVOKE_WITH_STATE_C
    return "\n".join(
        [
            *lines,
            _render_run(made),
            "",
            invoke.format(**made.types),
            ENDS_C.format(**made.types),
            *answer,
            END_C,
        ]
    )


def _list_run_parameters(made: AssembledModel, arena: str, state: str, suffix: str = "") -> str:
    """Return the parameters of model_run, with these names of the arena and the state.

    Args:
        suffix: what follows the names of an input or output that is not int8.
    """
    passed = [f"struct model_state *{state}"] if made.state else []
    ends = [
        f"{constant}{ctype} *{name}{suffix if ctype != 'int8_t' else ''}"
        for (name, ctype), constant in zip(made.types.items(), ("const ", ""), strict=True)
    ]
    return ", ".join((f"void *{arena}", *passed, *ends))


def _render_layer(made: AssembledModel, part: str, layer: Layer, pointer: str) -> str:
    number = next(i for i, (_, other) in enumerate(made.layers) if other is layer)
    read = [made.network.get_tensor(i) for i in layer.inputs]
    addresses = [made.addresses[i] for i in (*layer.inputs, layer.output)]
    offset = made.plan.scratch_offsets[number]
    scratch = f"arena + {offset}" if offset else "arena"
    shapes = (
        f"{' and '.join(format_dimensions(t.shape) for t in read) or 'nothing'} -> "
        f"{format_dimensions(made.network.get_tensor(layer.output).shape)}"
    )
    block = (
        render_block(layer, part, pointer, addresses, shapes, scratch).removesuffix("    }")
        + f"        LAYER_ENDS({number});\n    }}"
    )
    for loop in made.loops:
        if loop.first <= number < loop.first + loop.length:
            block = indent(block, "    ")
        if number == loop.first:
            block = f"    for (int step = 0; step < {loop.count}; step++) {{\n{block}"
        if number == loop.first + loop.length - 1:
            block += "\n    }"
    return block


def _render_part_layers(made: AssembledModel, part: str) -> list[tuple[Layer, str]]:
    return [
        (layer, _render_layer(made, part, layer, "part"))
        for layer_part, layer in made.layers
        if layer_part == part
    ]


def _list_arguments(text: str, part: str, value: str) -> tuple[str, str]:
    """Return the parameters of a part's function, and the arguments of its call."""
    arguments = [(f"const struct model_{part} *part", value)] if "part->" in text else []
    arguments += [("int8_t *arena", "arena")] if "arena" in _list_call_tokens(text) else []
    arguments += [("int8_t *state", "state")] if "state" in _list_call_tokens(text) else []
    arguments += [("const int8_t *input", "input")] if "input" in _list_call_tokens(text) else []
    arguments += [("int8_t *output", "output")] if "output" in _list_call_tokens(text) else []
    return ", ".join(kind for kind, _ in arguments) or "void", ", ".join(name for _, name in arguments)


def _list_call_tokens(text: str) -> set[str]:
    calls = [line for line in text.split("\n") if line.endswith(");")]
    return {token.strip("(),;") for line in calls for token in line.split()}


def _render_part_function(made: AssembledModel, part: str) -> str:
    text = "\n".join(block_text for _, block_text in _render_part_layers(made, part))
    return f"static void run_{part}({_list_arguments(text, part, '')[0]})\n{{\n{text}\n}}"


def _render_run(made: AssembledModel) -> str:
    """Return model_run, with parts in order, experts under their gate value, and sums between them."""
    structure = made.structure
    lines = [f"int model_run({_list_run_parameters(made, 'memory', 'state_memory', '_values')})", "{"]
    lines.append("    int8_t *const arena = memory;")
    lines += [
        f"    {constant}int8_t *const {name} = ({constant}int8_t *){name}_values;"
        for (name, ctype), constant in zip(made.types.items(), ("const ", ""), strict=True)
        if ctype != "int8_t"
    ]
    lines += ["    int8_t *const state = (int8_t *)state_memory;"] if made.state else []
    lines += ["    if ((uintptr_t)arena % 8 != 0) {", "        return -1;", "    }"]
    if not any(made.addresses[layer.output].split(" ")[0] == "output" for _, layer in made.layers):
        lines.append("    (void)output;")
    lines += ["    (void)state; /* all of its values may be unused */"] if made.state else []
    for i, part in enumerate(structure.names):
        if any("part->" in text for _, text in _render_part_layers(made, part)) or (
            part == "gate" and structure.gate
        ):
            lines.append(f"    const struct model_{part} *const {part} = model_part[{i}];")
    done: set[str] = set()
    for part, layer in made.layers:
        if part == "mix":
            lines.append(_render_layer(made, part, layer, "mix"))
        elif part not in done:
            done.add(part)
            lines += _render_call(made, part)
    return "\n".join([*lines, "    return 0;", "}"])


def _render_call(made: AssembledModel, part: str) -> list[str]:
    structure = made.structure
    blocks = _render_part_layers(made, part)
    call = f"run_{part}({_list_arguments(chr(10).join(text for _, text in blocks), part, part)[1]});"
    if part == "gate" and structure.gate:
        return [
            f"    {call}",
            *(
                f"    arena[MODEL_GATE_OFFSET + {k}] = *({made.addresses[index]});"
                for k, index in enumerate(structure.gate)
            ),
        ]
    if not part.startswith("expert") or not structure.gate:
        return [f"    {call}"]
    number = int(part.removeprefix("expert"))
    product = made.network.operators[structure.products[number]].outputs[0]
    layer = next(layer for layer, _ in blocks if layer.output == product)
    zero = f"{part}->{layer.name}_scale.zero"
    fill = f"fill({made.network.get_tensor(product).size}, {zero}, {made.addresses[product]});"
    return [
        f"    if (arena[MODEL_GATE_OFFSET + {number}] > gate->skip[{number}]) {{",
        f"        {call}",
        "    } else {",
        f"        {fill}",
        "    }",
    ]


def quote_c_string(text: str) -> str:
    """Return a text as a C string literal of its UTF-8 bytes.

    Bytes outside printable ASCII become octal escapes. A question mark is escaped too, since two of them may
    begin a trigraph.
    """
    quoted = "".join(
        f"\\{chr(byte)}" if chr(byte) in '"\\?' else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return f'"{quoted}"'


def read_c_template(name: str) -> str:
    """Return a C file of templates/c."""
    return resources.files("firmware_export").joinpath("templates", "c", f"{name}.c").read_text()


def wrap_numbers(values: Sequence[int], indent: str) -> str:
    """Return numbers, each with a comma, in lines of at most MAX_LINE_LENGTH characters.

    Args:
        indent: text at the start of each line.
    """
    lines = []
    line = indent
    for value in values:
        text = f"{value},"
        if len(line) + len(text) + 1 > MAX_LINE_LENGTH:
            lines.append(line.rstrip())
            line = indent
        line += text + " "
    return "\n".join([*lines, line.rstrip()])


def render_structs(used: Collection[str]) -> str:
    """Return the structs of quantization constants.

    Args:
        used: C types of the model's fields.
    """
    return "\n".join(
        f"{ctype} {{\n    int32_t {', '.join(members)};\n}};"
        for ctype, members in STRUCTS.items()
        if ctype in used
    )


def order_fields(fields: Sequence[Field]) -> list[Field]:
    """Return the fields in an order without padding in the struct.

    Integers of 32 bits come first, then integers of 16 bits, then bytes. An unused field fills the last four
    bytes.
    """
    arranged = sorted(fields, key=lambda field: -ELEMENT_BYTES.get(field.ctype, 4))
    rest = -sum(f.bytes for f in arranged) % 4
    if rest or not arranged:
        arranged.append(Field("unused", "int8_t", (0,) * (rest or 4)))
    return arranged


def render_declaration(part: str, fields: Sequence[Field]) -> str:
    """Return the C declaration of a part's struct.

    Args:
        part: name of the part.
        fields: members of the struct, in the order of `order_fields`.
    """
    lines = [f"    {f.ctype} {f.name}{'' if f.ctype in STRUCTS else f'[{len(f.values)}]'};" for f in fields]
    return "\n".join([f"struct model_{part} {{", *lines, "};"])


def render_definition(part: str, fields: Sequence[Field]) -> str:
    """Return the C definition of a part's constants.

    Args:
        part: name of the part.
        fields: members of the part's struct with their values, in the order of `order_fields`.
    """
    lines = [f"static const struct model_{part} {part} = {{"]
    for field in fields:
        if field.ctype in STRUCTS:
            members = ", ".join(
                f".{name} = {format_int(value)}"
                for name, value in zip(STRUCTS[field.ctype], field.values, strict=True)
            )
            lines.append(f"    .{field.name} = {{{members}}},")
        elif field.ctype == "int32_t":
            text = ", ".join(map(format_int, field.values))
            lines.append(
                f"    .{field.name} = {{{text}}},"
                if len(text) < MAX_LINE_LENGTH
                else f"    .{field.name} = {{\n{_format_int_rows(field.values)}\n    }},"
            )
        else:
            lines.append(f"    .{field.name} = {{\n{wrap_numbers(field.values, ' ' * 8)}\n    }},")
    return "\n".join([*lines, "};"])


def format_int(value: int) -> str:
    """Return a C literal of type int. The lowest int has no literal, so it becomes an expression."""
    return "(-2147483647 - 1)" if value == -(1 << 31) else str(value)


def _format_int_rows(values: Sequence[int]) -> str:
    return "\n".join(
        "        " + " ".join(f"{format_int(v)}," for v in values[i : i + 8])
        for i in range(0, len(values), 8)
    )


def format_dimensions(shape: Sequence[int]) -> str:
    """Return a shape without its batch axis, such as "8x8x3"."""
    return "x".join(map(str, shape[1:] or shape)) or "1"


def render_block(
    layer: Layer, part: str, pointer: str, addresses: Sequence[str], shapes: str, scratch: str
) -> str:
    """Return the C block of a layer.

    Args:
        part: name of its part.
        pointer: C expression of the part's struct.
        addresses: C expressions of the inputs, then of the output.
        shapes: text for the comment.
        scratch: C expression of the scratch memory.
    """
    inputs = dict(zip(("a", "b", "c"), addresses[:-1], strict=False))
    call = layer.call.format(p=pointer, out=addresses[-1], scratch=scratch, **inputs)
    note = "; ".join(
        piece
        for piece in (f"{layer.op}, {shapes}", layer.note, f"{layer.macs:,} MACs" if layer.macs else "")
        if piece
    )
    lines = [f"    {{ /* {part}, {layer.name}: {note} */"]
    if layer.shape:
        members = [
            f".{key} = {v[0] if len(v) == 1 else '{' + ', '.join(map(str, v)) + '}'}"
            for key, v in layer.shape
        ]
        lines.append(f"        static const {layer.shape_type} {layer.name}_shape = {{")
        lines += [f"            {', '.join(members[i : i + 6])}," for i in range(0, len(members), 6)]
        lines.append("        };")
    return "\n".join([*lines, f"        {call}", "    }"])
