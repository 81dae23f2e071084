"""Measurements of a finished stage that only some experiments need."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config import FederationConfig
from edgefl.base.types import Weights
from edgefl.data.dataset import as_float
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import Plan
from edgefl.simulation.runs.directory import RunDirectory
from edgefl.simulation.runs.layer_similarity import compare_layers, measure_layer_gaps
from edgefl.simulation.runs.new_client import (
    list_participant_gates,
    open_finished_run,
    predict_for_new_client,
)
from edgefl.simulation.runs.pipeline import PartitionedDataset
from edgefl.watch.audit.scenarios import NO_DEFENCE, Setting, audit_first_updates, audit_one_step


def _read_plan(run: RunDirectory) -> tuple[Plan, Weights]:
    plan_and_weights = run.read_plan()
    assert plan_and_weights is not None
    return plan_and_weights


def compare_client_layers(
    run: RunDirectory, config: FederationConfig, shared: PartitionedDataset, epochs: int
) -> dict[str, dict[str, float]]:
    """Return by how much each kind of layers shows the true clusters, see `measure_layer_gaps`.

    Args:
        run: the finished stage.
        epochs: number of epochs that each client trains alone.
    """
    plan, initial = _read_plan(run)
    truth = {client_id: part.truth for client_id, part in shared.client_partitions.items()}
    layers = compare_layers(LiteRTLearner(plan), initial, shared.shards, epochs, truth, config.seed)
    return measure_layer_gaps(layers)


def measure_new_client_accuracy(run: RunDirectory, shared: PartitionedDataset) -> float:
    """Return the accuracy for a client without labels on the whole test set, from 0 to 1.

    Args:
        run: the finished stage, of an algorithm with gates.

    Source: Reisser et al., Federated Mixture of Experts, 2021, appendix F.
    """
    finished = open_finished_run(run.files.root)
    dataset = shared.shards.dataset
    outputs, _ = predict_for_new_client(finished, list_participant_gates(finished), as_float(dataset.x_test))
    return float((outputs.argmax(axis=1) == dataset.y_test).mean())


def measure_label_distances(
    run: RunDirectory, config: FederationConfig, shared: PartitionedDataset
) -> Mapping[str, Any]:
    """Return how well class shares are read from the output bias of first updates.

    Args:
        run: the finished stage, of FedAvg.

    Returns:
        The mean total variation distance of true and inferred shares, from 0 to 1: `one_step` for one step on
            all samples, and `epochs` for the epochs of the configuration.

    Source: Reisser et al., Federated Mixture of Experts, 2021, appendix C.
    """
    plan, initial = _read_plan(run)
    setting = Setting(
        plan=plan, initial=initial, shards=shared.shards, config=config, learner=LiteRTLearner(plan)
    )
    return {
        "one_step": audit_one_step(setting).distance,
        "epochs": audit_first_updates(setting, NO_DEFENCE).distance,
    }


def measure_predicted_precision(confusions: Iterable[NDArray[np.int64]]) -> float:
    """Return the precision of a client's own classes that its model predicts at all.

    It is a mean over these classes, and then over the clients that have such a class. A model that predicts
    few classes can have a high precision here, because classes that it never predicts do not count.

    Args:
        confusions: true class, predicted class and number of test samples for each client, shape (pairs, 3).

    Returns:
        The precision, from 0 to 1. NaN if no client has such a class.
    """
    precisions = []
    for true, predicted, counts in (rows.T for rows in confusions):
        classes = np.intersect1d(true, predicted)
        hits = [counts[(true == label) & (predicted == label)].sum() for label in classes]
        predictions = [counts[predicted == label].sum() for label in classes]
        if len(classes):
            precisions.append(np.mean(np.array(hits) / np.array(predictions)))
    return float(np.mean(precisions)) if precisions else math.nan
