"""The metrics that a device publishes after its part of a round.

They are only for watchers. No result depends on them.
"""

import json
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path

from devices.host_sensors import read_temperature_c
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.system.host import read_rss_mb
from edgefl.protocol.wire.messages import Metrics

MAX_METRICS = 32
METRIC_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def make_telemetry(client_id: str, round: int, metrics: Mapping[str, float]) -> Metrics:
    """Return the message with the metrics of a round, at most 32, and the state of the board.

    The message contains only numbers.

    Args:
        metrics: metrics of the round. `seconds` is the duration of the device's part. Names of more than 64
            characters, or with other characters than letters, digits, `_`, `.`, `:` and `-`, are left out.
    """
    valid = {key: float(value) for key, value in metrics.items() if METRIC_NAME_PATTERN.fullmatch(key)}
    values = dict(list(valid.items())[:MAX_METRICS])
    seconds = float(metrics.get("seconds", math.nan))
    rss_mb, peak_rss_mb = read_rss_mb()
    return Metrics(
        client_id=client_id,
        round=round,
        values=values,
        rss_mb=rss_mb,
        peak_rss_mb=peak_rss_mb,
        temperature_c=read_temperature_c(),
        seconds=seconds,
        ts=time.time(),
    )


def read_field_figures(state: Path) -> dict[str, float]:
    """Return the figures of `edgefl export drift`, or an empty mapping if the file is missing or damaged.

    Args:
        state: the state directory of the device.
    """
    try:
        figures = json.loads(DeviceFiles(state).field_figures.read_bytes())
        return {str(name): float(value) for name, value in figures.items()}
    except (OSError, AttributeError, TypeError, ValueError):
        return {}
