"""Options of `edgefl aggregator start` for Home Assistant, Prometheus, TensorBoard and MLflow."""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.watch.loggers import LOG_HELP, check_log

DISCOVERY_PREFIX = "homeassistant"
DISCOVERY_PREFIX_PATTERN = re.compile(r"[^\s/+#$][^\s/+#]*(/[^\s/+#]+)*")


@dataclass(frozen=True)
class ToolOptions:
    """Options of the requested tools.

    Attributes:
        home_assistant: prefix of the discovery topics. Empty publishes no discovery messages.
        clear: remove the entities when the federation is done.
        metrics_port: TCP port of the metrics. 0 chooses a free port, None serves no metrics.
        metrics_host: address of the metrics.
        logs: values of `--log`, see `edgefl.watch.loggers.open_logs`.
    """

    home_assistant: str = ""
    clear: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    logs: tuple[str, ...] = ()


def check_tools(tools: ToolOptions, config: FederationConfig) -> None:
    """Check the options of the tools.

    Args:
        config: configuration of the federation. With `[privacy]`, `--log` is an error.

    Raises:
        ConfigError: an option is invalid, or does not fit this federation.
    """
    for log_option in tools.logs:
        check_log(log_option)
    if tools.logs and config.privacy.is_on:
        raise ConfigError(
            "--log does not work with [privacy]: the losses of rounds have no noise; leave one out"
        )
    if tools.home_assistant and not DISCOVERY_PREFIX_PATTERN.fullmatch(tools.home_assistant):
        raise ConfigError(
            f"--home-assistant is {tools.home_assistant!r}, expected the prefix of its discovery topics; "
            f"pass a prefix such as {DISCOVERY_PREFIX}"
        )
    if tools.clear and not tools.home_assistant:
        raise ConfigError(
            "--home-assistant-clear removes entities of --home-assistant; give --home-assistant too"
        )


def add_tool_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add these options to a click command, which receives them as the argument `tools`.

    Args:
        command: function of the command, with a parameter `tools` of type `ToolOptions`.
    """

    @functools.wraps(command)
    def call_command(
        *,
        home_assistant: str | None,
        clear: bool,
        metrics_port: int | None,
        metrics_host: str,
        logs: Sequence[str],
        **more: Any,
    ) -> None:
        command(
            tools=ToolOptions(
                home_assistant=home_assistant or "",
                clear=clear,
                metrics_port=metrics_port,
                metrics_host=metrics_host,
                logs=tuple(logs),
            ),
            **more,
        )

    options = (
        click.option(
            "--home-assistant",
            is_flag=False,
            flag_value=DISCOVERY_PREFIX,
            metavar="[PREFIX]",
            help=f"Publish MQTT discovery messages for Home Assistant  [PREFIX: {DISCOVERY_PREFIX}]",
        ),
        click.option(
            "--home-assistant-clear",
            "clear",
            is_flag=True,
            help="Remove the entities when the federation is done.",
        ),
        click.option(
            "--metrics-port",
            type=click.IntRange(0, 65535),
            help="Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics. 0 chooses a free port.",
        ),
        click.option(
            "--metrics-host",
            default="127.0.0.1",
            show_default=True,
            help="Address for the metrics. There is no authentication.",
        ),
        click.option("--log", "logs", multiple=True, help=LOG_HELP),
    )
    for option in reversed(options):
        call_command = option(call_command)
    return call_command
