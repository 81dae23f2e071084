"""Loads `.keras` files, and checks them before Keras reads them, so that an untrusted file runs no code.

The file is a zip archive of config.json, the layers in Keras's format, and model.weights.h5. Keras's safe
mode rejects the code of Lambda layers. In addition, every object that the configuration names must be part of
Keras. A file therefore cannot import other modules of this machine. A small file can also request gigabytes,
through compressed HDF5 arrays or sizes in the configuration. Arrays and weights are therefore counted before
any of them is created, and loading stops at a limit of processor time.
"""

import json
import math
import random
import signal
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.program.models.weights_file import WEIGHTS_FILE, measure_in_subprocess

CONFIG_FILE = "config.json"
KERAS_MODULES = {
    "activations",
    "constraints",
    "dtype_policies",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "models",
    "ops",
    "optimizers",
    "quantizers",
    "regularizers",
}
"""Packages of Keras that contain the objects of a model, including the training settings of nested models."""
UNSAFE_OBJECTS = {"Lambda", "__lambda__", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "TFSMLayer"}
"""Keras objects that contain code, or that read other files or programs."""
MAX_UNPACKED_BYTES = {
    CONFIG_FILE: 16 << 20,
    "all of it": 512 << 20,
    "the arrays in " + WEIGHTS_FILE: 512 << 20,
}
"""Maximum size in bytes of config.json, of a whole archive and of its arrays.

Compression can make each of them a million times smaller in the file.
"""
MAX_WEIGHTS = 1 << 25
"""Maximum number of values in all variables of a model. The largest built-in model, VGG-16, has 15 million.
"""
MAX_OBJECTS = 20_000
"""Maximum number of objects that a configuration names, such as layers. MobileNetV2 names about 1,000."""
LOSS_OPTIONS = ("label_smoothing", "ignore_class", "delta", "alpha", "gamma", "apply_class_balancing")
"""Options of Keras's losses that change what a model learns."""
LOSS_DEFAULTS = ("label_smoothing=0.0", "label_smoothing=0", "delta=1.0")
LOAD_CPU_LIMIT_S = 120.0
FILE_SIGNATURES = {b"\x89HDF\r\n\x1a\n": "an HDF5 file", b"PK\x03\x04": "a truncated or damaged zip archive"}


def explain_format(name: str) -> str:
    """Return an error message if the name belongs to a model file in another format, or "" otherwise."""
    path = Path(name)
    if path.suffix in (".h5", ".hdf5"):
        kind = "an HDF5 file"
    elif (path / "saved_model.pb").is_file() or path.name == "saved_model.pb":
        kind = "a SavedModel"
    else:
        return ""
    missing_note = "" if path.exists() else ", and it does not exist"
    return (
        f"the model {name} is {kind}{missing_note}, expected a .keras file; load it with Keras and save "
        "it as .keras: model.save('model.keras')"
    )


def load_keras_file(path: Path) -> Any:
    """Load the model in a `.keras` file.

    Raises:
        ConfigError: the file cannot be read or exceeds a limit, or the model contains code or classes that
            are not part of Keras.
    """
    import keras

    config = _read_config(path)
    _check_objects(path, config)
    _check_states(path, config)
    _check_arrays(path)
    try:
        with _limit_cpu(LOAD_CPU_LIMIT_S):
            _check_weights(path, config)
            return keras.models.load_model(path, compile=False, safe_mode=True)
    except ConfigError:
        raise
    except _CpuLimitReached as error:
        raise ConfigError(
            f"cannot load the model {path}: Keras worked on it for {LOAD_CPU_LIMIT_S:g} s; a network for "
            "boards loads in seconds, use module:function for a large network of your own"
        ) from error
    except Exception as error:  # damaged archives raise many types
        reason = (
            f"{type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else 'no reason given'}"
        )
        raise ConfigError(
            f"cannot load the model {path}: {reason}; save it again with model.save, using Keras "
            f"{keras.__version__}"
        ) from error


def read_compiled_loss(path: Path) -> str:
    """Return the loss that the model in a `.keras` file was compiled with, or "".

    Returns:
        Such as `mse`, or `CategoricalCrossentropy(label_smoothing=0.2)`.

    Raises:
        ConfigError: the file cannot be read.
    """
    config = _read_config(path)
    compiled = config.get("compile_config") if isinstance(config, dict) else None
    loss = compiled.get("loss") if isinstance(compiled, dict) else None
    if not isinstance(loss, dict):
        return str(loss or "")
    options = loss.get("config")
    if not isinstance(options, dict):
        return str(options)  # The name of a function
    changes = [f"{key}={options[key]}" for key in LOSS_OPTIONS if options.get(key) is not None]
    changes = [change for change in changes if change not in LOSS_DEFAULTS]
    return str(loss.get("class_name")) + (f"({', '.join(changes)})" if changes else "")


def _read_config(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(
            f"cannot load the model {path}: there is no such file; check the path in [model] name"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {
                CONFIG_FILE: archive.getinfo(CONFIG_FILE).file_size,
                "all of it": sum(info.file_size for info in archive.infolist()),
            }
            for part, size in sizes.items():
                _check_size(path, part, size)
            return json.loads(archive.read(CONFIG_FILE))
    except zipfile.BadZipFile as error:
        with path.open("rb") as file:
            start = file.read(8)
        kind = next(
            (name for mark, name in FILE_SIGNATURES.items() if start.startswith(mark)), "not a zip archive"
        )
        remedy = (
            "load it with Keras and save it again as .keras"
            if "HDF5" in kind
            else "copy it again, or save the model again"
        )
        raise ConfigError(
            f"cannot load the model {path}: it is {kind}, expected a .keras file; {remedy}"
        ) from error
    except (KeyError, ValueError, NotImplementedError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"cannot load the model {path}: a zip archive without a readable {CONFIG_FILE} ({error}), "
            "expected a .keras file; save the model again"
        ) from error


def _check_size(path: Path, part: str, size: int) -> None:
    if size > MAX_UNPACKED_BYTES[part]:
        raise ConfigError(
            f"cannot load the model {path}: {part} unpacks to {size:,} bytes, expected at most "
            f"{MAX_UNPACKED_BYTES[part]:,}; a network for boards is far smaller, use module:function for a "
            "large network of your own"
        )


def _check_arrays(path: Path) -> None:
    size, problem = measure_in_subprocess(path)
    if problem:
        raise ConfigError(f"cannot load the model {path}: {problem}; save it again with model.save")
    _check_size(path, "the arrays in " + WEIGHTS_FILE, size)


def _check_weights(path: Path, config: Any) -> None:
    """Count the weights of the configured model, and reject a model with too many.

    In Keras's stateless scope, variables have shapes but no values.
    """
    import keras

    random_state = random.getstate()  # creating initializers draws their seeds
    try:
        with keras.StatelessScope(initialize_variables=False):
            model = keras.saving.deserialize_keras_object(_strip_training(config), safe_mode=True)
        count = sum(
            math.prod(int(size) for size in variable.shape) for variable in getattr(model, "variables", ())
        )
    finally:
        keras.utils.clear_session(free_memory=False)  # forget the variables without values
        random.setstate(random_state)
    if count > MAX_WEIGHTS:
        raise ConfigError(
            f"cannot load the model {path}: {CONFIG_FILE} describes {count:,} weights, expected at most "
            f"{MAX_WEIGHTS:,}; a network for boards is far smaller, use module:function for a large network "
            "of your own"
        )


def _strip_training(config: Any) -> Any:
    """Return the configuration without the optimizers of the model and of nested models.

    Optimizers create their variables immediately.
    """
    if isinstance(config, dict):
        return {key: _strip_training(value) for key, value in config.items() if key != "compile_config"}
    return [_strip_training(value) for value in config] if isinstance(config, list) else config


class _CpuLimitReached(BaseException):
    """The limit of processor time has been reached.

    It is not an Exception, because Keras catches those and raises a TypeError about the layer instead.
    """


@contextmanager
def _limit_cpu(seconds: float) -> Iterator[None]:
    """Raise `_CpuLimitReached` after this processor time, and again after each further period.

    Python ignores an exception that a signal raises in a finalizer or in a callback of the garbage collector,
    so the signal is repeated. Only the main thread can set the timer. There is no limit in other threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise _CpuLimitReached

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _check_objects(path: Path, config: Any) -> None:
    for count, (name, module) in enumerate(_list_objects(config), 1):
        if count > MAX_OBJECTS:
            raise ConfigError(
                f"cannot load the model {path}: {CONFIG_FILE} names more than {MAX_OBJECTS:,} objects; a "
                "network for boards is far smaller, use module:function for a large network of your own"
            )
        if name in UNSAFE_OBJECTS:
            raise ConfigError(
                f"cannot load the model {path}: it contains a {name.strip('_')} layer, whose code would run "
                "on this machine; use layers without code, or use module:function for your own model"
            )
        if not _is_keras_object(name, module):
            raise ConfigError(
                f"cannot load the model {path}: {name} of {module or 'no module'} is not part of Keras; "
                "use Keras layers, or use module:function for the model"
            )


def _check_states(path: Path, config: Any) -> None:
    """Check that no layer keeps a state from sample to sample. Keras creates it before it is counted."""
    pending = [config]
    while pending:
        value = pending.pop()
        if isinstance(value, dict) and value.get("stateful") is True:
            raise ConfigError(
                f"cannot load the model {path}: the layer {value.get('name')} is stateful, expected a state "
                "that starts at zero in each sample; build the model with stateful=False"
            )
        pending.extend(
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        )


def _is_keras_object(name: str, module: str | None) -> bool:
    if module is None:  # Keras's markers for tensors and slices
        return name.startswith("__")
    package, _, inside = module.partition(".")
    if package != "keras":
        return (name, module) == ("function", "builtins")
    return not inside or inside.removeprefix("src.").split(".")[0] in KERAS_MODULES


def _list_objects(config: Any) -> Iterator[tuple[str, str | None]]:
    """Yield class and module of every object in a configuration, except for the compile settings."""
    pending = [
        {key: part for key, part in config.items() if key != "compile_config"}
        if isinstance(config, dict)
        else config
    ]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if "class_name" in value:
                module = value.get("module")
                yield str(value["class_name"]), None if module is None else str(module)
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
