"""Errors for partition options that are out of range."""

from typing import Any

import numpy as np
import pytest

from edgefl.base.config import PartitionConfig
from edgefl.base.errors import DataError
from edgefl.data.dataset import Dataset
from edgefl.data.partitions.registry import make_client_partitions


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dirichlet", {"alpha": float("inf")}),
        ("dirichlet", {"alpha": -1.0}),
        ("quantity", {"alpha": float("nan")}),
        ("pachinko", {"beta": 0.0}),
        ("rotation", {"alpha": 0.0}),
        ("rotation", {"degrees": float("inf")}),
        ("rotation", {"label_alpha": float("inf")}),
        ("tasks", {"imbalance": 0.5}),
        ("tasks", {"imbalance": float("inf")}),
        ("tasks", {"imbalance": 1e9, "samples": 20, "test_samples": 10}),
        ("packages", {"test_share": 1.0}),
        ("packages", {"package": 1}),
        ("p-majority", {"p": 1.5}),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, options: dict[str, Any]) -> None:
    y = np.tile(np.arange(10), 120)
    y_test = np.tile(np.arange(10), 60)
    data = Dataset(
        x_train=np.zeros((1200, 1, 1, 1), np.float32),
        y_train=y,
        x_test=np.zeros((600, 1, 1, 1), np.float32),
        y_test=y_test,
        num_classes=10,
        coarse=np.arange(10) // 3,
    )
    with pytest.raises(DataError, match=next(iter(options)).split("_")[0]):
        make_client_partitions(data, PartitionConfig(name=name, num_clients=4, options=options), 1)
