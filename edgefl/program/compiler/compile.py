"""Compiles objectives into one `.tflite` program of builtin ops. Each objective becomes one signature."""

import contextlib
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from edgefl.base.errors import PlanError
from edgefl.program.compiler.convolution import check_depthwise_ops
from edgefl.program.compiler.gradients import use_builtin_gradients
from edgefl.program.compiler.objective import Objective, compile_signature, make_signature, run_signature
from edgefl.program.plan.spec import SignatureSpec


def compile_program(objectives: Sequence[Objective]) -> tuple[bytes, tuple[SignatureSpec, ...]]:
    """Return the program of objectives. It uses only builtin ops of TFLite, and batches of static size.

    Args:
        objectives: the objectives, with different names.

    Returns:
        The `.tflite` file, and the signatures in the order of the objectives.

    Raises:
        PlanError: an objective cannot be compiled, which the error explains by layer and op, or two
            objectives have the same name.
    """
    signatures = tuple(make_signature(objective) for objective in objectives)
    names = [signature.name for signature in signatures]
    if len(set(names)) < len(names) or not names:
        raise PlanError(
            f"the objectives are {', '.join(names) or 'missing'}, expected at least one, each with a "
            "different name; rename them"
        )
    traced = {o.name: _trace(o, s) for o, s in zip(objectives, signatures, strict=True)}
    with tempfile.TemporaryDirectory(prefix="edgefl-plan-") as directory, _hide_gradient_warnings():
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        module = tf.Module()
        tf.saved_model.save(module, directory, signatures=traced, options=options)
        converter = tf.lite.TFLiteConverter.from_saved_model(directory, signature_keys=names)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        try:
            program = converter.convert()
        except Exception as error:  # The converter raises its own type, which has no public name
            raise PlanError(_explain(str(error))) from error
    return bytes(program), signatures


@contextlib.contextmanager
def _hide_gradient_warnings() -> Iterator[None]:
    """Hide TensorFlow's warnings about unsaved custom gradients, which the program does not need."""

    def is_relevant(record: logging.LogRecord) -> bool:
        return "unsaved custom gradients" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_relevant)
    try:
        yield
    finally:
        logger.removeFilter(is_relevant)


def _trace(objective: Objective, signature: SignatureSpec) -> Any:
    def run(**args: Any) -> dict[str, Any]:
        with use_builtin_gradients():
            return run_signature(objective, signature, args)

    function = compile_signature(run, signature)
    check_depthwise_ops(function.graph)
    return function


def _explain(message: str) -> str:
    """Return an error text that names the layers whose ops, or ops of gradients, the converter refused.

    The message of the converter has a line for each op, with the path of the op in the graph.
    """
    problems = []
    for line in message.splitlines():
        refused = re.search(r"'tf\.(\w+)' op is neither", line)
        op_names = [name for name in re.findall(r'"([^"@]+)@', line) if "/" in name]
        if refused and op_names:
            layer = op_names[-1].removeprefix("gradients/").split("/")[0].removesuffix("_grad")
            problems.append(f"layer {layer} needs {refused[1]}")
    if not problems:
        ops = re.findall(r'"(?:gradients/)?([^"@/:]+)/[^"]*@', message)
        reasons = re.findall(r"'tfl?\.\w+' op [^\n]*", message)
        layer = ops[0].removesuffix("_grad") if ops else "unknown"
        reason = (reasons or message.strip().splitlines() or ["no reason given"])[0][:300]
        return (
            f"layer {layer} cannot be converted to TFLite: {reason}; change the sizes of the layer, or "
            "replace it with a layer that `edgefl plan build --help` lists"
        )
    remedy = "replace the layer with a layer that `edgefl plan build --help` lists"
    return f"{'; '.join(dict.fromkeys(problems))}: TFLite has no such builtin op; {remedy}"
