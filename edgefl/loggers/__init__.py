"""Writes the scalars of rounds to TensorBoard and MLflow."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.loggers.scalars import Write

__all__ = ["LOG_HELP", "Write", "about_run", "check_log", "open_logs"]

LOG_HELP = (
    "Log each round: tensorboard:DIR or mlflow:URI, such as mlflow:http://HOST:5000; may be given again."
)


def check_log(wanted: str) -> tuple[str, str]:
    """Return kind and place of `KIND:PLACE`; ConfigError when it is none."""
    kind, _, place = wanted.partition(":")
    if kind not in ("tensorboard", "mlflow") or not place:
        raise ConfigError(
            f"--log {wanted!r}, expected tensorboard:DIR or mlflow:URI, such as tensorboard:logs or "
            "mlflow:http://HOST:5000"
        )
    return kind, place


def about_run(config: FederationConfig) -> dict[str, str]:
    """Return what a run is made with, by the names of the configuration's tables."""
    told = {
        "algorithm": config.algorithm,
        "model": config.model.name,
        "rounds": config.rounds,
        "seed": config.seed,
        "codec": config.codec,
    }
    return {name: str(value) for name, value in told.items()} | {
        f"algorithm.{name}": str(each) for name, each in config.options.items()
    }


@contextmanager
def open_logs(
    wanted: Sequence[str], name: str, *, key: str, resumed: bool, about: Mapping[str, str]
) -> Iterator[Write]:
    """Open logs and return what writes the scalars of a step to all of them.

    name: the federation's. key: which run this is, so that one that is `resumed` is gone on with. about: what
    the run was made with. Raises ConfigError for what is no log or cannot be opened, ModuleNotFoundError
    without the extra.
    """
    with ExitStack() as stack:
        writes: list[Write] = []
        for kind, place in map(check_log, wanted):
            if kind == "tensorboard":
                from edgefl.loggers.tensorboard import tensorboard

                writes.append(stack.enter_context(tensorboard(place)))
            else:
                from edgefl.loggers.mlflow import mlflow

                writes.append(
                    stack.enter_context(
                        mlflow(
                            place,
                            name,
                            key=hashlib.sha256(key.encode()).hexdigest(),
                            resumed=resumed,
                            about=about,
                        )
                    )
                )
        yield lambda step, scalars: _write_all(writes, step, scalars)


def _write_all(
    writes: Sequence[Callable[[int, Mapping[str, float]], None]], step: int, scalars: Mapping[str, float]
) -> None:
    for write in writes:
        write(step, scalars)
