"""A `.keras` file, perhaps a stranger's: looked through before Keras sees it, so that nothing in it runs code.

The file is a zip archive of config.json, the layers as Keras writes them, and model.weights.h5. Keras's safe mode refuses the
code of Lambda layers; here every object that the configuration names must also be one of Keras's own, so no module of this
machine is imported because a file says so.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgefl.errors import ConfigError

CONFIG = "config.json"
MODULES = {
    "activations", "constraints", "dtype_policies", "initializers", "layers", "losses", "metrics", "models", "ops", "optimizers",
    "regularizers",
}  # fmt: skip
"""Packages of Keras whose objects a model is made of; the training settings of a model inside a model are made too."""
UNSAFE = {"Lambda", "__lambda__", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "TFSMLayer"}
"""Objects of Keras that hold code, or read other files and programs."""
LIMITS = {CONFIG: 16 << 20, "all of it": 1 << 30}
"""Bytes that config.json and a whole archive unpack to at most; an archive can be made that unpacks to a thousand times its size."""
FORMATS = {b"\x89HDF\r\n\x1a\n": "an HDF5 file", b"PK\x03\x04": "a truncated or damaged zip archive"}


def load_file(path: Path) -> Any:
    """Return the model in a `.keras` file. Raises ConfigError for any other file, and for a model with code or classes of its own."""
    import keras

    _check(path, _read_config(path))
    try:
        return keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # what is wrong inside an archive comes up as any of a dozen types
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason given'}"
        raise ConfigError(f"cannot load the model {path}: {reason}; save it again with model.save, by Keras {keras.__version__}") from error


def _read_config(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(f"cannot load the model {path}: there is no such file; check the path in [model] name")
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {CONFIG: archive.getinfo(CONFIG).file_size, "all of it": sum(each.file_size for each in archive.infolist())}
            for part, size in sizes.items():
                if size > LIMITS[part]:
                    raise ConfigError(
                        f"cannot load the model {path}: {part} unpacks to {size:,} bytes, expected at most {LIMITS[part]:,}; "
                        "a network for boards is far smaller, give a large one of your own as module:function"
                    )
            return json.loads(archive.read(CONFIG))
    except zipfile.BadZipFile as error:
        with path.open("rb") as file:
            start = file.read(8)
        found = next((name for mark, name in FORMATS.items() if start.startswith(mark)), "no zip archive")
        remedy = "load it with Keras and save it again as .keras" if "HDF5" in found else "copy it again, or save the model again"
        raise ConfigError(f"cannot load the model {path}: it is {found}, expected a .keras file; {remedy}") from error
    except (KeyError, ValueError, NotImplementedError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"cannot load the model {path}: a zip archive without a readable {CONFIG} ({error}), expected a .keras file; "
            "save the model again"
        ) from error


def _check(path: Path, config: Any) -> None:
    for name, module in _objects(config):
        if name in UNSAFE:
            raise ConfigError(
                f"cannot load the model {path}: it holds a {name.strip('_')} layer, whose code would run here; "
                "use layers without code, or give your own model as module:function"
            )
        if not _known(name, module):
            raise ConfigError(
                f"cannot load the model {path}: {name} of {module or 'no module'} is no part of Keras; "
                "use Keras's own layers, or give the model as module:function"
            )


def _known(name: str, module: str | None) -> bool:
    if module is None:  # Keras's marks for tensors and slices
        return name.startswith("__")
    package, _, inside = module.partition(".")
    if package != "keras":
        return (name, module) == ("function", "builtins")
    return not inside or inside.removeprefix("src.").split(".")[0] in MODULES


def _objects(config: Any) -> Iterator[tuple[str, str | None]]:
    """Yield class and module of every object in a configuration, but for what compiling the whole model would make: it is not compiled."""
    todo = [{key: part for key, part in config.items() if key != "compile_config"} if isinstance(config, dict) else config]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if "class_name" in value:
                module = value.get("module")
                yield str(value["class_name"]), None if module is None else str(module)
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
