"""edgefl: federated training of small networks on devices, with a personal int8 model for each device.

A researcher needs the names of `__all__`. They are imported when they are first used, so that a device loads
only what it runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgefl.base.config import DataConfig, FederationConfig, ModelConfig, PartitionConfig, load_config
    from edgefl.watch.history import History, simulate

__version__ = "0.2.0"
__all__ = [
    "DataConfig",
    "FederationConfig",
    "History",
    "ModelConfig",
    "PartitionConfig",
    "load_config",
    "simulate",
]
_HOMES = {"History": "edgefl.watch.history", "simulate": "edgefl.watch.history"}
"""The modules of the names that are not in `edgefl.base.config`."""


def __dir__() -> list[str]:
    """Return the names that a notebook completes."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    """Import and return a name of `__all__`.

    Raises:
        AttributeError: edgefl has no such name.
    """
    if name not in __all__:
        raise AttributeError(f"module 'edgefl' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES.get(name, "edgefl.base.config")), name)
