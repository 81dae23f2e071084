"""The text of the generated C: structs, initializers, comments."""

from collections.abc import Sequence
from importlib import resources

from firmware_export.codegen.layer import STRUCTS, Field, Layer

WIDTH = 120
KERNELS = (
    "dsp",
    "convolution",
    "column",
    "conv_2d",
    "depthwise_conv_2d",
    "products",
    "fully_connected",
    "fully_connected_narrow",
    "pool",
    "max_pool_2d",
    "average_pool_2d",
    "softmax",
    "lookup",
    "elementwise",
    "add",
    "mul",
    "select",
    "mean",
    "copy",
    "fill",
)
"""In the order in which model.c holds them."""


def template(name: str) -> str:
    """Return a C file of templates/c."""
    return resources.files("firmware_export").joinpath("templates", "c", f"{name}.c").read_text()


def wrapped(values: Sequence[int], indent: str) -> str:
    """Return numbers in lines of at most WIDTH."""
    lines = []
    line = indent
    for value in values:
        text = f"{value},"
        if len(line) + len(text) + 1 > WIDTH:
            lines.append(line.rstrip())
            line = indent
        line += text + " "
    return "\n".join([*lines, line.rstrip()])


def struct_types() -> str:
    """Return the small structs of quantization constants."""
    return "\n".join(
        f"{ctype} {{\n    int32_t {', '.join(members)};\n}};" for ctype, members in STRUCTS.items()
    )


def ordered(fields: Sequence[Field]) -> list[Field]:
    """Return words before bytes, so that a struct has no holes, and the bytes that fill its last word."""
    found = [f for f in fields if f.ctype != "int8_t"] + [f for f in fields if f.ctype == "int8_t"]
    rest = -sum(f.bytes for f in found) % 4
    if rest or not found:
        found.append(Field("unused", "int8_t", (0,) * (rest or 4)))
    return found


def declaration(part: str, fields: Sequence[Field]) -> str:
    """Return the struct of a part."""
    lines = [f"    {f.ctype} {f.name}{'' if f.ctype in STRUCTS else f'[{len(f.values)}]'};" for f in fields]
    return "\n".join([f"struct model_{part} {{", *lines, "};"])


def definition(part: str, fields: Sequence[Field]) -> str:
    """Return the constants of a part."""
    lines = [f"static const struct model_{part} {part} = {{"]
    for each in fields:
        if each.ctype in STRUCTS:
            members = ", ".join(
                f".{name} = {number(value)}"
                for name, value in zip(STRUCTS[each.ctype], each.values, strict=True)
            )
            lines.append(f"    .{each.name} = {{{members}}},")
        elif each.ctype == "int32_t":
            text = ", ".join(map(number, each.values))
            lines.append(
                f"    .{each.name} = {{{text}}},"
                if len(text) < WIDTH
                else f"    .{each.name} = {{\n{_words(each.values)}\n    }},"
            )
        else:
            lines.append(f"    .{each.name} = {{\n{wrapped(each.values, ' ' * 8)}\n    }},")
    return "\n".join([*lines, "};"])


def number(value: int) -> str:
    """Return a number that has type int: the least one has no literal of its own."""
    return "(-2147483647 - 1)" if value == -(1 << 31) else str(value)


def _words(values: Sequence[int]) -> str:
    return "\n".join(
        "        " + " ".join(f"{number(v)}," for v in values[i : i + 8]) for i in range(0, len(values), 8)
    )


def dimensions(shape: Sequence[int]) -> str:
    """Return a shape without its batch."""
    return "x".join(map(str, shape[1:] or shape)) or "1"


def block(layer: Layer, part: str, pointer: str, places: Sequence[str], shapes: str) -> str:
    """Return a layer's block of C. places: the C of its inputs, then of its output."""
    spots = dict(zip(("a", "b"), places[:-1], strict=False))
    call = layer.call.format(p=pointer, out=places[-1], **spots)
    note = "; ".join(
        each
        for each in (f"{layer.op}, {shapes}", layer.note, f"{layer.macs:,} MACs" if layer.macs else "")
        if each
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
