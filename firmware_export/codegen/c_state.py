"""The state of a model in the generated C: what its variables keep from one inference to the next.

The state lies beside the arena, so that other code may use the arena between two inferences. Its first values
are constants of the first part, so that an update brings its own ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firmware_export.codegen.buffers import align
from firmware_export.codegen.layer import Field, flatten_ints
from firmware_export.tflite.quantized_model import QuantizedModel


@dataclass(frozen=True)
class StateEntry:
    """One variable in the state.

    Attributes:
        tensor: index of its tensor.
        offset: offset in the state in bytes.
        bytes: size in bytes, rounded up to the alignment.
        size: size in bytes.
        initial: its first bytes, or one value if all bytes are equal.
    """

    tensor: int
    offset: int
    bytes: int
    size: int
    initial: Field

    @property
    def address(self) -> str:
        """C expression of its address."""
        return f"state + {self.offset}" if self.offset else "state"


def plan_state(network: QuantizedModel) -> tuple[StateEntry, ...]:
    """Return the variables of a model with their offsets, in the order of the model."""
    entries: list[StateEntry] = []
    offset = 0
    for number, variable in enumerate(network.variables):
        raw = np.ascontiguousarray(variable.initial)
        values = raw.astype(raw.dtype.newbyteorder("<")).view(np.int8).ravel()
        entries.append(
            StateEntry(
                tensor=variable.tensor,
                offset=offset,
                bytes=align(values.size),
                size=values.size,
                initial=Field(
                    f"initial_state{number}",
                    "int8_t",
                    flatten_ints(values[:1] if (values == values[:1]).all() else values),
                ),
            )
        )
        offset += entries[-1].bytes
    return tuple(entries)


def list_arena_bytes(network: QuantizedModel) -> dict[int, int]:
    """Return the size in bytes of each tensor in the arena: 0 for a variable, which lies in the state."""
    outside = {variable.tensor for variable in network.variables}
    return {tensor.index: tensor.bytes * (tensor.index not in outside) for tensor in network.tensors}


STATE_H = """/* What the model keeps from one inference to the next. */
#define MODEL_STATE_BYTES {size}
struct model_state {{
    uint64_t words[MODEL_STATE_BYTES / 8];
}};
/* Begin a new sequence. model_invoke does it before the first inference. Call it before a sample
   that does not continue the last one, and after a change of model_part. */
void model_reset(void);
/* The same for the caller's state. Call it before the first model_run. */
void model_reset_state(struct model_state *state);
"""
RESET_C = """void model_reset_state(struct model_state *memory)
{{
    int8_t *const state = (int8_t *)memory;
    const struct model_{part} *const {part} = model_part[0];
{lines}
}}

static struct model_state model_static_state;
static int model_has_state;

void model_reset(void)
{{
    model_reset_state(&model_static_state);
    model_has_state = 1;
}}
"""


def render_state_h(state: Sequence[StateEntry]) -> str:
    """Return the declarations of a model with a state."""
    return STATE_H.format(size=sum(entry.bytes for entry in state))


def render_state_c(state: Sequence[StateEntry], part: str) -> str:
    """Return the functions that begin a new sequence.

    Args:
        part: name of the first part, which has the first values.
    """
    lines = [
        f"    fill({entry.size}, {part}->{entry.initial.name}[0], {entry.address});"
        if len(entry.initial.values) == 1
        else f"    copy(&(const struct copy){{{{1, 1, 1, {entry.size}}}, {{0, 0, 0, 1}}, {{0, 0, 0, 1}}}}, "
        f"{part}->{entry.initial.name}, {entry.address});"
        for entry in state
    ]
    return RESET_C.format(part=part, lines="\n".join(lines))
