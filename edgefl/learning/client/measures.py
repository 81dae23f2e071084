"""The figures by which a client compares its models, for each kind of task.

A figure is from 0 to 1, and more is better. For a classification it is the accuracy. For a regression it is
the share of the targets' variance that the model explains (R2), at least 0. For anomalies it is the area
under the ROC curve, or R2 of the reconstruction if no test sample is an anomaly.
"""

import numpy as np
from numpy.typing import NDArray

from edgefl.base.tasks.config import TaskConfig
from edgefl.base.tasks.scores import measure_auc, measure_explained_share, measure_sample_losses, rank_among
from edgefl.base.types import Array, Labels, Peer, Shard
from edgefl.learning.client.blend import predict_outputs
from edgefl.learning.client.selection import SCORE_UNIT, Scores
from edgefl.program.learner.base import Learner, predict_label_log_p
from edgefl.program.plan.spec import read_task

Ratings = NDArray[np.float64]
"""How well a model does on each test sample. More is better, and equal means as good."""


def score_samples(learner: Learner, peer: Peer, x: Array, y: Labels) -> Scores:
    """Return how well a model predicts each sample, in thousandths.

    For a classification this is the probability that the model assigns to the label. It shows a difference
    with fewer samples than correct answers do. For another task it is 1 / (1 + loss / s), where s is the mean
    loss of the best constant prediction for these samples. A value that is not a number counts as 0.

    Args:
        x: samples, shape (n, *input_shape), float32.
        y: labels, see `Learner.fit`.

    Returns:
        The scores, shape (n,), int64.
    """
    log_p = predict_label_log_p(learner, peer.signature, peer.weights, x, y)
    task = read_task(learner.spec)
    if task.is_classification:
        shares = np.exp(log_p)
    else:
        shares = 1 / (1 - log_p / measure_constant_loss(task, y))
    return np.asarray(np.rint(SCORE_UNIT * np.nan_to_num(shares, nan=0.0)), np.int64)


def measure_constant_loss(task: TaskConfig, y: Labels) -> float:
    """Return the mean loss of the best constant prediction: the mean of the targets, or their median for mae.

    Args:
        task: the task, no classification.
        y: targets, shape (n, outputs), float32.

    Returns:
        The loss, above 0. 1 if the targets do not vary.
    """
    center = np.median(y, axis=0) if task.loss_name == "mae" else y.mean(axis=0, dtype=np.float64)
    loss = float(measure_sample_losses(task.loss_name, np.broadcast_to(center, y.shape), y).mean())
    return loss or 1.0


def measure_test_samples(learner: Learner, peer: Peer, shard: Shard) -> tuple[Ratings, dict[str, float]]:
    """Measure a model on the test samples of a client.

    Args:
        shard: the samples of the client in the form of the task.

    Returns:
        The rating of each compared test sample, and figures of the model by measure, see
            `edgefl.base.verdict.MEASURES`. For a classification a rating is 1 for a correct answer and 0
            otherwise. For a regression it is the negative loss. For anomalies it is the share of normal test
            samples with a lower loss, for each test sample that is an anomaly. A loss that is not finite has
            the rating -inf. Without test samples the figures are NaN.
    """
    task = read_task(learner.spec)
    if not len(shard.y_test):
        return np.zeros(0), {"accuracy" if task.is_classification else "r2": float("nan")}
    outputs = predict_outputs(learner, peer, shard.x_test)
    if task.is_classification:
        correct = (outputs.argmax(axis=1) == shard.y_test) & np.isfinite(outputs).all(axis=1)
        return correct.astype(np.float64), {"accuracy": float(correct.mean())}
    losses = measure_sample_losses(task.loss_name, outputs, shard.y_test)
    is_anomaly = np.zeros(len(losses), np.bool_) if shard.anomaly_test is None else shard.anomaly_test
    is_normal = ~is_anomaly
    figures = {"r2": measure_explained_share(outputs[is_normal], shard.y_test[is_normal])}
    worst = np.where(np.isfinite(losses), 0.0, -np.inf)
    if not is_anomaly.any() or is_anomaly.all():
        return np.where(np.isfinite(losses), -losses, worst)[is_normal], figures
    return rank_among(losses[is_anomaly], losses[is_normal]) + worst[is_anomaly], {
        "auc": measure_auc(losses, is_anomaly),
        **figures,
    }
