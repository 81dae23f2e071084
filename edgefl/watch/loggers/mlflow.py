"""Writes scalars as metrics of an MLflow run, to a tracking server or a database such as sqlite:///mlflow.db.

The experiment has the name of the federation. An interrupted run is continued. Its tag `edgefl.run`
identifies it.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.base.round_scalars import Writer

RUN_KEY_TAG = "edgefl.run"
MAX_BATCH_METRICS = 1000
"""Maximum number of metrics in one request, as MLflow limits it."""
MAX_RETRIES = "3"
"""Retries of a request, about 15 s. MLflow's default of 7 takes minutes. The environment can override it."""


@contextmanager
def open_mlflow(
    uri: str, name: str, *, key: str, resumed: bool, about: Mapping[str, str]
) -> Iterator[Writer]:
    """Open an MLflow run.

    The run ends as FINISHED, or as FAILED after an error. A federation continues when MLflow loses metrics. A
    warning at the end reports their number.

    Args:
        uri: the tracking URI.
        name: name of the experiment.
        key: identifies the run.
        resumed: continue the run with the same key, if there is one.
        about: parameters of the run by name.

    Raises:
        ConfigError: MLflow cannot use the URI.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", MAX_RETRIES)
    from mlflow.entities import Metric, RunTag
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        client = MlflowClient(tracking_uri=uri)
        run_id = _open_run(client, name, key, resumed, about)
    except MlflowException as error:
        raise ConfigError(
            f"--log mlflow:{uri}: {str(error)[:500]}; check that the server runs and the address is right"
        ) from error
    sent: list[Any] = []

    def write(step: int, scalars: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(metric_name, value, now, step) for metric_name, value in scalars.items()]
        # Asynchronous, so that no round waits for the server
        sent.extend(
            client.log_batch(run_id, metrics[at : at + MAX_BATCH_METRICS], synchronous=False)
            for at in range(0, len(metrics), MAX_BATCH_METRICS)
        )

    def write_tag(tag_name: str, text: str) -> None:
        sent.append(client.log_batch(run_id, tags=[RunTag(tag_name, text)], synchronous=False))

    status = "FAILED"
    try:
        yield Writer(write, write_tag)
        status = "FINISHED"
    finally:
        lost = sum(not _was_delivered(operation) for operation in sent)
        if lost or not _terminate_run(client, run_id, status):
            logging.getLogger(__name__).warning(
                "MLflow at %s is missing %d of %d batches of this run, or its end", uri, lost, len(sent)
            )


def _was_delivered(operation: Any) -> bool:
    try:
        operation.wait()
    except Exception:  # any error of MLflow's thread, which MLflow logs itself
        return False
    return True


def _terminate_run(client: Any, run_id: str, status: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        with redirect_stdout(sys.stderr):  # MLflow prints the address of the run, stdout is for the result
            client.set_terminated(run_id, status)
    except MlflowException:
        return False
    return True


def _open_run(client: Any, name: str, key: str, resumed: bool, about: Mapping[str, str]) -> str:
    existing = client.get_experiment_by_name(name)
    experiment = existing.experiment_id if existing else client.create_experiment(name)
    if resumed:
        before = client.search_runs([experiment], f"tags.`{RUN_KEY_TAG}` = '{key}'", max_results=1)
        if before:
            client.update_run(before[0].info.run_id, status="RUNNING")
            return str(before[0].info.run_id)
    run = client.create_run(experiment, tags={RUN_KEY_TAG: key})
    for parameter, value in about.items():
        client.log_param(run.info.run_id, parameter, value)
    return str(run.info.run_id)
