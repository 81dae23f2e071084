"""LSTM, GRU and SimpleRNN as one operator per step, without a loop over time.

The product of the input and the kernel is computed for all steps at once. The state of the first step is
zero, so this step has no product of the state and the recurrent kernel. All further steps have the same
operators, which the generated C folds into a loop.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edgefl.base.errors import PlanError
from edgefl.program.compiler.convolution import TRACING_PROGRAM

Tensor = Any
MIN_STEPS = 2
"""Minimum number of steps. With a single step, a layer does not use its recurrent kernel."""
MAX_STEPS = 32
"""Maximum number of steps of a recurrent layer without `unroll=True`."""
STEPWISE_LAYERS = (keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN)


def list_recurrent(layer: Any) -> tuple[Any, ...]:
    """Return the recurrent layers in a layer: itself, or both directions of a Bidirectional."""
    if isinstance(layer, keras.layers.Bidirectional):
        return (layer.forward_layer, layer.backward_layer)
    return (layer,) if isinstance(layer, keras.layers.RNN) else ()


def check_steps(layer: Any, part: Any) -> None:
    """Check that a recurrent layer without `unroll=True` can be computed step by step.

    Args:
        layer: the layer of the model.
        part: the layer itself, or one direction of a Bidirectional.

    Raises:
        PlanError: the layer has one step or more than 32, another cell than LSTM, GRU and SimpleRNN, a mask,
            or a state that does not start at zero or is an output.
    """
    name = f"layer {layer.name} ({type(part).__name__})"
    if type(part) not in STEPWISE_LAYERS:
        raise PlanError(
            f"{name} loops over time, which a compiled program cannot do; use LSTM, GRU or SimpleRNN, or "
            "set unroll=True"
        )
    if part.stateful or part.return_state or isinstance(layer.input, list):
        raise PlanError(
            f"{name} has a mask, stateful, return_state or initial_state, expected complete samples and a "
            "state that starts at zero; remove it, or set unroll=True"
        )
    steps = layer.input.shape[1]
    if steps is None or not MIN_STEPS <= steps <= MAX_STEPS:
        raise PlanError(
            f"{name} has {steps} steps, expected {MIN_STEPS} to {MAX_STEPS}; shorten the window, or put a "
            "Conv1D with strides or a pooling layer before it"
        )


def call_recurrent(
    layer: Any, read: Callable[[Any], Tensor], x: Tensor, training: bool
) -> tuple[Tensor, Sequence[tuple[Any, Tensor]]] | None:
    """Apply an LSTM, GRU or SimpleRNN, or return None for a layer with `unroll=True`.

    Args:
        read: returns the value of a variable of the layer.
        x: float32[batch, steps, channels].
        training: whether the layer runs in training mode.

    Returns:
        The output as in Keras, float32[batch, units] or float32[batch, steps, units], and no new values of
        variables.
    """
    del training
    if layer.unroll:
        return None
    states = _run_steps(layer, read, x)
    return tf.stack(states, 1) if layer.return_sequences else states[-1], ()


def call_bidirectional(
    layer: Any, read: Callable[[Any], Tensor], x: Tensor, training: bool
) -> tuple[Tensor, Sequence[tuple[Any, Tensor]]] | None:
    """Apply a Bidirectional, or return None for layers with `unroll=True`.

    Args:
        read: returns the value of a variable of the layer.
        x: float32[batch, steps, channels].
        training: whether the layer runs in training mode.

    Returns:
        The output as in Keras, and no new values of variables.
    """
    parts = list_recurrent(layer)
    if any(part.unroll for part in parts):
        return None
    directions = []
    for part, direction in zip(parts, ("forward", "backward"), strict=True):
        with tf.name_scope(direction):
            directions.append(_run_steps(part, read, x))
    states_forward, states_backward = directions
    if layer.return_sequences:
        forward, backward = tf.stack(states_forward, 1), tf.stack(states_backward[::-1], 1)
    else:
        forward, backward = states_forward[-1], states_backward[-1]
    merges = {
        "concat": lambda: tf.concat([forward, backward], -1),
        "sum": lambda: forward + backward,
        "ave": lambda: (forward + backward) * 0.5,
        "mul": lambda: forward * backward,
    }
    return merges[layer.merge_mode]() if layer.merge_mode else [forward, backward], ()


def _run_steps(layer: Any, read: Callable[[Any], Tensor], x: Tensor) -> list[Tensor]:
    """Return the output of each step, float32[batch, units], in the order of their run."""
    cell = layer.cell
    batch, steps, channels = x.shape
    bias = read(cell.bias) if cell.use_bias else None
    recurrent_bias = None
    if isinstance(cell, keras.layers.GRUCell) and cell.reset_after and bias is not None:
        bias, recurrent_bias = bias[0], bias[1]
    projected = tf.reshape(tf.transpose(x, (1, 0, 2)), (steps * batch, channels)) @ read(cell.kernel)
    if bias is not None:
        projected += bias
    inputs = tf.unstack(tf.reshape(projected, (steps, batch, -1)))
    if layer.go_backwards:
        inputs.reverse()
    recurrent = read(cell.recurrent_kernel)
    if isinstance(cell, keras.layers.LSTMCell):
        return _run_lstm(cell, inputs, recurrent)
    if isinstance(cell, keras.layers.GRUCell):
        return _run_gru(cell, inputs, recurrent, recurrent_bias)
    return _run_simple(cell, inputs, recurrent)


def _iterate_steps(inputs: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the input of each step. The operators of a step have its number in their names.

    The converter orders independent operators by their names. The steps then have the same order.
    """
    for number, entry in enumerate(inputs):
        with tf.name_scope(f"step{number:02d}"):
            yield entry


def _split(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return parts of the last axis.

    A program splits, because slices have a slower gradient.
    """
    if TRACING_PROGRAM.get():
        return list(tf.split(x, sizes, -1))
    ends = np.cumsum(sizes)
    return [x[:, end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _run_simple(cell: Any, inputs: Sequence[Tensor], recurrent: Tensor) -> list[Tensor]:
    """Return the outputs of a SimpleRNN."""
    states: list[Tensor] = []
    for entry in _iterate_steps(inputs):
        states.append(cell.activation(entry + states[-1] @ recurrent if states else entry))
    return states


def _run_lstm(cell: Any, inputs: Sequence[Tensor], recurrent: Tensor) -> list[Tensor]:
    """Return the outputs of an LSTM. Its gates are input, forget, candidate and output."""
    units = cell.units
    memory = state = None
    states = []
    for entry in _iterate_steps(inputs):
        gates = entry if state is None else entry + state @ recurrent
        steering, candidate, output = _split(gates, (2 * units, units, units))
        entering, forgetting = _split(cell.recurrent_activation(steering), (units, units))
        memory_new = entering * cell.activation(candidate)
        memory = memory_new if memory is None else forgetting * memory + memory_new
        state = cell.recurrent_activation(output) * cell.activation(memory)
        states.append(state)
    return states


def _run_gru(
    cell: Any, inputs: Sequence[Tensor], recurrent: Tensor, recurrent_bias: Tensor | None
) -> list[Tensor]:
    """Return the outputs of a GRU. Its gates are update, reset and candidate."""
    units = cell.units
    state = None
    states = []
    for entry in _iterate_steps(inputs):
        steering, candidate = _split(entry, (2 * units, units))
        inner = None
        if cell.reset_after and state is not None:
            inner = state @ recurrent
            inner = inner if recurrent_bias is None else inner + recurrent_bias
        elif recurrent_bias is not None:
            inner = tf.reshape(recurrent_bias, (1, 3 * units))
        if inner is not None:
            inner_steering, inner_candidate = _split(inner, (2 * units, units))
            steering += inner_steering
        elif state is not None:
            steering += state @ recurrent[:, : 2 * units]
        update, reset = _split(cell.recurrent_activation(steering), (units, units))
        if inner is not None:
            candidate += reset * inner_candidate
        elif state is not None:
            candidate += (reset * state) @ recurrent[:, 2 * units :]
        candidate = (1 - update) * cell.activation(candidate)
        state = candidate if state is None else update * state + candidate
        states.append(state)
    return states
