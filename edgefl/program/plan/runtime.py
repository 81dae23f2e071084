"""Selects a TFLite runtime: ai-edge-litert, or tflite-runtime if only that is installed."""

import importlib
import importlib.metadata
import importlib.util
import re
from typing import Any

from edgefl.base.errors import PlanError
from edgefl.program.plan.tflite import check_identifier

RUNTIME_PACKAGES = {
    "litert": ("ai_edge_litert", "ai-edge-litert"),
    "tflite-runtime": ("tflite_runtime", "tflite-runtime"),
}


def list_runtimes() -> tuple[str, ...]:
    """Return the names of the installed runtimes, the preferred one first."""
    return tuple(name for name, (module, _) in RUNTIME_PACKAGES.items() if importlib.util.find_spec(module))


def describe_runtime(name: str) -> str:
    """Return the package name and version of a runtime, such as `ai-edge-litert 2.3.0`."""
    distribution = RUNTIME_PACKAGES[name][1]
    try:
        return f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return distribution


RUNTIME_VERSION = describe_runtime(list_runtimes()[0]) if list_runtimes() else "none"


def load_interpreter(
    model: bytes, threads: int = 1, *, reference: bool = False, watch: bool = False, runtime: str = "auto"
) -> Any:
    """Return an interpreter for a model, without allocated tensors.

    Args:
        model: the bytes of a `.tflite`.
        reference: use the reference kernels, without delegates. They are slow and give the same bits as a
            microcontroller.
        watch: keep every tensor readable after a run. This needs more memory and uses no delegates.
        runtime: a name of `list_runtimes`, or `auto` for the first of them.

    Raises:
        PlanError: no runtime or not the requested runtime is installed, or the runtime rejects the model.
        ModelFileError: the bytes are not a `.tflite`.
    """
    installed_runtimes = list_runtimes()
    if runtime == "auto" and not installed_runtimes:
        raise PlanError(
            "no TFLite runtime is installed, expected ai-edge-litert or tflite-runtime; run `pip install "
            "ai-edge-litert`"
        )
    name = installed_runtimes[0] if runtime == "auto" else runtime
    if name not in installed_runtimes:
        names = ", ".join(installed_runtimes) or "none"
        raise PlanError(
            f"the runtime {name!r} is not installed, installed: {names}; install it or use `auto`"
        )
    check_identifier(model)
    module = importlib.import_module(f"{RUNTIME_PACKAGES[name][0]}.interpreter")
    kinds = module.OpResolverType
    plain = kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES if watch else kinds.AUTO
    options = {
        "experimental_op_resolver_type": kinds.BUILTIN_REF if reference else plain,
        "experimental_preserve_all_tensors": watch,
    }
    try:
        return module.Interpreter(model_content=model, num_threads=threads, **options)
    except (ValueError, RuntimeError) as error:
        missing = re.search(r"Didn't find op for builtin opcode '(\w+)'", str(error))
        if reference and missing:
            raise PlanError(
                f"the reference kernels of {describe_runtime(name)} have no {missing[1]}; use the kernels "
                "without --reference, or tflite-micro, which computes like a microcontroller"
            ) from error
        raise PlanError(
            f"{describe_runtime(name)} rejects this model: {str(error).strip()}; it is damaged or has a "
            "newer format"
        ) from error
