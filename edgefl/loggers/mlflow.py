"""Scalars as metrics of an MLflow run, by MLflow's client: a tracking server, or a database such as
sqlite:///mlflow.db.

The experiment bears the federation's name. A run that was interrupted is gone on with: its tag `edgefl.run`
says which it is.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

from edgefl.errors import ConfigError
from edgefl.loggers.scalars import Writer

RUN_KEY_TAG = "edgefl.run"
MAX_BATCH_METRICS = 1000
"""Metrics in one request, MLflow's own limit."""
MAX_RETRIES = "3"
"""Of a request, unless the environment says otherwise: some 15 s, where MLflow's own 7 take minutes."""


@contextmanager
def open_mlflow(
    uri: str, name: str, *, key: str, resumed: bool, about: Mapping[str, str]
) -> Iterator[Writer]:
    """Open a run of the experiment `name`; see `open_logs`.

    It ends as FINISHED, or FAILED when this ends of an error.

    Raises ConfigError when MLflow cannot use the URI. What it does not take later is told at the end, and
    ends no federation.
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
            f"--log mlflow:{uri}: {str(error)[:500]}; is the server up, and the address right?"
        ) from error
    sent: list[Any] = []

    def write(step: int, scalars: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(metric_name, value, now, step) for metric_name, value in scalars.items()]
        # from a thread of MLflow's own: no round waits for a server
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
                "MLflow at %s lacks %d of %d batches of this run, or its end", uri, lost, len(sent)
            )


def _was_delivered(operation: Any) -> bool:
    try:
        operation.wait()
    except Exception:  # whatever broke in MLflow's thread; its own log says what
        return False
    return True


def _terminate_run(client: Any, run_id: str, status: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        with redirect_stdout(sys.stderr):  # where the run can be seen; stdout may be for a program
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
