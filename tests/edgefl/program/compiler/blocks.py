"""The Keras layers that plans support, as a table. The pair test compiles them, and a page lists them.

`python -m tests.edgefl.program.compiler.blocks` writes the table of the page
`docs/reference/supported-models.md`.

A block is a layer with its options. It has the number of spatial axes of its input: 0 for vectors, 1 for
windows, 2 for images and 3 for volumes. A pair is a block and a second block that takes its output.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import keras

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "supported-models.md"
TABLE_START = "| layers | vectors | windows | images | volumes |\n"

SHAPES = {0: (6,), 1: (10, 4), 2: (6, 6, 4), 3: (4, 4, 4, 2)}
"""Shape of a sample by its number of spatial axes."""
CONVOLUTION = "convolution"
POOLING = "pooling"
DENSE = "dense"
SHAPE = "shape"
ACTIVATION = "activation"
NORM = "normalization"
RECURRENT = "recurrent"
OTHER = "other"
ACTIVATION_NAMES = (
    *("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "softplus", "softsign", "sigmoid", "log_sigmoid"),
    *("hard_sigmoid", "tanh", "hard_tanh", "tanh_shrink", "silu", "hard_silu", "mish", "exponential"),
    *("squareplus", "sparse_plus", "sparse_sigmoid", "hard_shrink", "soft_shrink", "softmax", "log_softmax"),
)
FLOAT_ACTIVATIONS = (
    *("leaky_relu", "elu", "selu", "celu", "softplus", "softsign", "log_sigmoid", "mish", "exponential"),
    *("squareplus", "sparse_plus", "sparse_sigmoid", "hard_shrink", "soft_shrink", "log_softmax"),
)
"""Activations without an int8 form. Devices train them, and the export refuses them."""
FLOAT_LAYERS = (
    *("LeakyReLU", "ELU", "PReLU", "RMSNormalization", "UnitNormalization", "RepeatVector"),
    *(f"{kind}{axes}D" for kind in ("GlobalMaxPooling", "UpSampling") for axes in (1, 2, 3)),
)
"""Layers without an int8 form. A ReLU with `max_value` and an LSTM with `unroll=True` have none either."""
FUSED_ACTIVATIONS = ("relu6", "hard_tanh")
"""Activations with an int8 form only as a part of the layer with weights before them."""
PAIRED_ENDS = (("linear", True), ("relu", True), ("relu", False), ("tanh", False))
"""Activation and bias of the layers in pairs. The converter fuses a ReLU with the operator before it."""


@dataclass(frozen=True)
class Block:
    """A layer with its options.

    Attributes:
        layer: name of the class in `keras.layers`.
        part: the row of the page that lists it.
        axes: number of spatial axes of its input.
        options: its options.
        axes_after: number of spatial axes of its output, if it is another.
        is_paired: whether it is a part of pairs. Each block is tested alone.
    """

    layer: str
    part: str
    axes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    axes_after: int | None = None
    is_paired: bool = True

    @property
    def name(self) -> str:
        """The layer with its options and the number of spatial axes of its input."""
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.layer}({options}) on {self.axes} axes"

    @property
    def has_int8(self) -> bool:
        """Whether a device can export the layer alone, between its input and a ReLU."""
        return not (
            self.layer in FLOAT_LAYERS
            or self.options.get("activation") in FLOAT_ACTIVATIONS
            or (self.layer == "ReLU" and self.options)
            or (self.layer == "Activation" and self.options["activation"] in FUSED_ACTIVATIONS)
            or (self.layer == "LSTM" and self.options.get("unroll"))
        )

    def make(self) -> Any:
        """Return a new layer."""
        if self.layer == "Bidirectional":
            return keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True))
        return getattr(keras.layers, self.layer)(**self.options)


def list_blocks() -> tuple[Block, ...]:
    """Return all supported layers, each with the options that plans treat in ways of their own."""
    return (*_list_weighted(), *_list_activations(), *_list_norms(), *_list_shapes(), *_list_recurrent())


def list_pairs(blocks: Sequence[Block]) -> Iterator[tuple[Block, Block]]:
    """Yield each pair of blocks that fit together."""
    for first in blocks:
        after = first.axes if first.axes_after is None else first.axes_after
        for second in blocks:
            if first.is_paired and second.is_paired and after == second.axes:
                yield first, second


def _list_weighted() -> Iterator[Block]:
    same = {"kernel_size": 3, "padding": "same"}
    layers: list[tuple[str, int, dict[str, Any], bool]] = [
        ("Dense", 0, {"units": 6}, True),
        ("Dense", 1, {"units": 4}, False),
        ("Conv1D", 1, {"filters": 4, **same}, True),
        ("Conv1D", 1, {"filters": 4, "kernel_size": 1}, False),
        ("SeparableConv1D", 1, {"filters": 4, **same}, False),
        ("DepthwiseConv1D", 1, same, False),
        ("Dense", 2, {"units": 4}, False),
        ("Conv2D", 2, {"filters": 4, **same}, True),
        ("Conv2D", 2, {"filters": 4, "kernel_size": 1}, False),
        ("SeparableConv2D", 2, {"filters": 4, **same}, False),
        ("DepthwiseConv2D", 2, same, False),
        ("Dense", 3, {"units": 2}, False),
    ]
    for layer, axes, options, has_all in layers:
        for activation in ("linear", *ACTIVATION_NAMES):
            for has_bias in (True, False):
                is_paired = (activation, has_bias) in PAIRED_ENDS
                if has_all or activation in ("linear", "relu", "relu6", "tanh"):
                    yield Block(
                        layer=layer,
                        part=DENSE if layer == "Dense" else CONVOLUTION,
                        axes=axes,
                        options={**options, "activation": activation, "use_bias": has_bias},
                        is_paired=is_paired and (has_all or activation == "relu"),
                    )
    for options in (
        {"kernel_size": 2, "strides": 2},
        {"kernel_size": 3, "dilation_rate": 2},
        {"kernel_size": 3, "padding": "causal"},
        {"kernel_size": 3, "padding": "causal", "dilation_rate": 2},
    ):
        yield Block(
            layer="Conv1D", part=CONVOLUTION, axes=1, options={"filters": 4, **options}, is_paired=False
        )
    for options in ({"kernel_size": (2, 3), "strides": 2}, {"kernel_size": 2, "dilation_rate": (2, 1)}):
        yield Block(
            layer="Conv2D", part=CONVOLUTION, axes=2, options={"filters": 4, **options}, is_paired=False
        )
    for options in ({"strides": 2}, {"depth_multiplier": 2}, {"dilation_rate": 2}):
        yield Block(
            layer="DepthwiseConv2D",
            part=CONVOLUTION,
            axes=2,
            options={"kernel_size": 3, **options},
            is_paired=False,
        )


def _list_activations() -> Iterator[Block]:
    for axes in SHAPES:
        make = partial(Block, part=ACTIVATION, axes=axes)
        yield make("ReLU")
        yield make("ReLU", options={"max_value": 6.0})
        yield make(
            "ReLU", options={"negative_slope": 0.1, "threshold": 0.2, "max_value": 2.0}, is_paired=False
        )
        yield make("LeakyReLU")
        yield make("ELU", is_paired=False)
        yield make("PReLU")
        yield make("Softmax")
        for name in ACTIVATION_NAMES if axes == 0 else ("tanh",):
            yield make("Activation", options={"activation": name}, is_paired=name == "tanh")


def _list_norms() -> Iterator[Block]:
    for axes in SHAPES:
        make = partial(Block, part=NORM, axes=axes)
        yield make("BatchNormalization")
        yield make("BatchNormalization", options={"scale": False, "center": False, "momentum": 0.5})
        yield make("BatchNormalization", options={"trainable": False})
        yield make("GroupNormalization", options={"groups": 2})
        yield make("LayerNormalization")
        yield make("LayerNormalization", options={"scale": False, "center": False}, is_paired=False)
        yield make("RMSNormalization", is_paired=False)
        yield make("UnitNormalization", is_paired=False)
        yield make("Rescaling", options={"scale": 0.5, "offset": -0.2})
        yield make("Normalization", options={"mean": 0.3, "variance": 4.0}, is_paired=False)


def _list_shapes() -> Iterator[Block]:
    for axes in (1, 2, 3):
        yield Block(layer="Flatten", part=SHAPE, axes=axes, axes_after=0)
        for kind in ("Average", "Max"):
            yield Block(layer=f"Global{kind}Pooling{axes}D", part=POOLING, axes=axes, axes_after=0)
        yield Block(layer=f"ZeroPadding{axes}D", part=SHAPE, axes=axes)
        yield Block(layer=f"Cropping{axes}D", part=SHAPE, axes=axes, is_paired=False)
        yield Block(layer=f"UpSampling{axes}D", part=SHAPE, axes=axes, is_paired=False)
    for axes in (1, 2):
        for kind in ("Average", "Max"):
            yield Block(layer=f"{kind}Pooling{axes}D", part=POOLING, axes=axes, options={"pool_size": 2})
            overlapping = {"pool_size": 3, "strides": 2, "padding": "same"}
            yield Block(
                layer=f"{kind}Pooling{axes}D",
                part=POOLING,
                axes=axes,
                options=overlapping,
                is_paired=kind == "Max",
            )
    yield Block(
        layer="Reshape", part=SHAPE, axes=0, options={"target_shape": (3, 2)}, axes_after=1, is_paired=False
    )
    yield Block(layer="RepeatVector", part=SHAPE, axes=0, options={"n": 3}, axes_after=1, is_paired=False)
    yield Block(layer="Permute", part=SHAPE, axes=1, options={"dims": (2, 1)}, is_paired=False)
    yield Block(layer="Permute", part=SHAPE, axes=2, options={"dims": (2, 1, 3)})
    for axes in SHAPES:
        yield Block(layer="Identity", part=SHAPE, axes=axes, is_paired=False)
        yield Block(
            layer="ActivityRegularization",
            part=OTHER,
            axes=axes,
            options={"l1": 0.05, "l2": 0.1},
            is_paired=axes == 0,
        )
        yield Block(layer="Dropout", part=OTHER, axes=axes, options={"rate": 0.4}, is_paired=axes == 0)


def _list_recurrent() -> Iterator[Block]:
    for layer in ("LSTM", "GRU", "SimpleRNN"):
        for options in ({}, {"return_sequences": True}, {"unroll": True}, {"use_bias": False}):
            sequences = 1 if options.get("return_sequences") else 0
            yield Block(
                layer=layer,
                part=RECURRENT,
                axes=1,
                options={"units": 4, **options},
                axes_after=sequences,
                is_paired=not options,
            )
        yield Block(
            layer=layer,
            part=RECURRENT,
            axes=1,
            options={"units": 4, "activation": "relu", "use_bias": False},
            axes_after=0,
            is_paired=False,
        )
        yield Block(
            layer=layer,
            part=RECURRENT,
            axes=1,
            options={"units": 4, "go_backwards": True},
            axes_after=0,
            is_paired=False,
        )
    yield Block(
        layer="GRU",
        part=RECURRENT,
        axes=1,
        options={"units": 4, "reset_after": False},
        axes_after=0,
        is_paired=False,
    )
    yield Block(layer="Bidirectional", part=RECURRENT, axes=1, is_paired=False)


def render_table() -> str:
    """Return the table of the page: each layer, and the samples on which the pair test compares it."""
    axes_by_layer: dict[str, set[int]] = {}
    for block in list_blocks():
        axes_by_layer.setdefault(block.layer, set()).add(block.axes)
    rows: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    parts = {block.layer: block.part for block in list_blocks()}
    for layer, axes in axes_by_layer.items():
        rows.setdefault((parts[layer], tuple(sorted(axes))), []).append(layer)
    order = list(dict.fromkeys(parts.values()))
    lines = [TABLE_START, "|---|---|---|---|---|\n"]
    for (_, axes), layers in sorted(rows.items(), key=lambda row: (order.index(row[0][0]), row[0][1])):
        cells = ["yes" if count in axes else "" for count in SHAPES]
        lines.append(f"| {', '.join(layers)} | {' | '.join(cells)} |\n")
    names = ", ".join(f"`{name}`" for name in ACTIVATION_NAMES)
    floats = ", ".join((*FLOAT_LAYERS, *(f"`{name}`" for name in FLOAT_ACTIVATIONS)))
    return "".join([*lines, f"\nActivations: {names}.\n", f"\nWithout an int8 form: {floats}.\n"])


def replace_table(text: str) -> str:
    """Return the text of the page with the table of this version."""
    before, _, rest = text.partition(TABLE_START)
    return before + render_table() + rest.partition("\nWithout an int8 form: ")[2].partition("\n")[2]


if __name__ == "__main__":
    PAGE.write_text(replace_table(PAGE.read_text()))
