"""Writes the scalars of rounds to TensorBoard and MLflow."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.round_scalars import Write, Writer, extract_verdict_scalars

__all__ = ["LOG_HELP", "ScalarLog", "Write", "check_log", "describe_run", "open_logs"]

LOG_HELP = (
    "Log each round to tensorboard:DIR or mlflow:URI, such as mlflow:http://HOST:5000. Can be repeated."
)
VERDICT_TAG = "edgefl.verdict"
"""Name of the tag that holds the sentence of the verdict."""


@dataclass(frozen=True)
class ScalarLog:
    """Writes scalars to all logs of a run.

    Attributes:
        writers: one writer per open log.
    """

    writers: Sequence[Writer]

    def __call__(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars to all logs.

        Args:
            step: the round.
            scalars: finite values by name.
        """
        for writer in self.writers:
            writer.write(step, scalars)

    def write_verdict(self, step: int, verdict: Mapping[str, Any]) -> None:
        """Write the figures of a verdict as scalars of a step, and its sentence as a tag.

        Args:
            step: the last round.
            verdict: the verdict as a tree, see `edgefl.base.verdict.as_dict`.
        """
        self(step, extract_verdict_scalars(verdict))
        for writer in self.writers:
            writer.write_tag(VERDICT_TAG, verdict["sentence"])


def check_log(log_option: str) -> tuple[str, str]:
    """Return the kind and the location of a `--log` option, such as `mlflow` and `http://HOST:5000`.

    Raises:
        ConfigError: the option is neither tensorboard:DIR nor mlflow:URI.
    """
    kind, _, location = log_option.partition(":")
    if kind not in ("tensorboard", "mlflow") or not location:
        raise ConfigError(
            f"--log {log_option!r}, expected tensorboard:DIR or mlflow:URI, such as tensorboard:logs or "
            "mlflow:http://HOST:5000"
        )
    return kind, location


def describe_run(config: FederationConfig) -> dict[str, str]:
    """Return the parameters of a run as text, such as `algorithm` and `algorithm.learning_rate`."""
    facts = {
        "algorithm": config.algorithm,
        "model": config.model.name,
        "rounds": config.rounds,
        "seed": config.seed,
        "codec": config.codec,
    }
    return {name: str(value) for name, value in facts.items()} | {
        f"algorithm.{name}": str(option) for name, option in config.options.items()
    }


@contextmanager
def open_logs(
    log_options: Sequence[str], name: str, *, key: str, resumed: bool, about: Mapping[str, str]
) -> Iterator[ScalarLog]:
    """Open the logs of a run.

    Args:
        log_options: values of `--log`.
        name: name of the federation.
        key: text that identifies the run, so that a resumed run continues its logs.
        resumed: whether the run was resumed.
        about: parameters of the run by name.

    Raises:
        ConfigError: an option is not a log, or a log cannot be opened.
        ModuleNotFoundError: the extra `tensorboard` or `mlflow` is not installed.
    """
    with ExitStack() as stack:
        writers: list[Writer] = []
        for kind, location in map(check_log, log_options):
            if kind == "tensorboard":
                from edgefl.watch.loggers.tensorboard import open_tensorboard

                writers.append(stack.enter_context(open_tensorboard(location)))
            else:
                from edgefl.watch.loggers.mlflow import open_mlflow

                writers.append(
                    stack.enter_context(
                        open_mlflow(
                            location,
                            name,
                            key=hashlib.sha256(key.encode()).hexdigest(),
                            resumed=resumed,
                            about=about,
                        )
                    )
                )
        yield ScalarLog(writers)
