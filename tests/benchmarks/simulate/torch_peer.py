"""The PyTorch peer of the simulate benchmark: `torch_peer.py SAMPLES EPOCHS`, run by a Python that has torch
and does not need edgefl.

It is a plain loop without compilation: zero_grad, backward, torch.optim.SGD with momentum. Batches index one
tensor of samples, because a DataLoader would be slower. Channels come first in PyTorch, so kernels and the
rows of the first dense layer are reordered.
"""
# mypy: disable-error-code="import-not-found"

import json
import os
import sys
import time
from collections import OrderedDict

import numpy as np
import torch
from torch import nn

LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")


def build_network() -> nn.Sequential:
    """Return LeNet-5 for float32[batch, 1, 28, 28], layers named as in edgefl's."""
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(1, 6, 5, padding=2)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(2)),
        ("conv2", nn.Conv2d(6, 16, 5)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(2)),
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(400, 120)),
        ("relu3", nn.ReLU()),
        ("fc2", nn.Linear(120, 84)),
        ("relu4", nn.ReLU()),
        ("fc3", nn.Linear(84, 10)),
    ]
    return nn.Sequential(OrderedDict(layers))


def main(samples: str, epochs: int) -> None:
    """Train, and print one JSON line.

    It has wall clock and processor milliseconds of a step for each epoch after the first, and the mean loss
    of the first epoch.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    arrays = np.load(samples)
    model = build_network()
    with torch.no_grad():
        for name in LAYERS:
            kernel = arrays[f"{name}/kernel"]
            # Rows are flattened from (row, column, channel). PyTorch flattens (channel, row, column)
            if name == "fc1":
                kernel = kernel.reshape(5, 5, 16, -1).transpose(2, 0, 1, 3).reshape(400, -1)
            getattr(model, name).weight.copy_(
                torch.from_numpy(kernel.transpose((3, 2, 0, 1) if kernel.ndim == 4 else (1, 0)).copy())
            )
            getattr(model, name).bias.copy_(torch.from_numpy(arrays[f"{name}/bias"]))
    x = torch.from_numpy(arrays["x"].transpose(0, 3, 1, 2).copy())
    y = torch.from_numpy(arrays["y"])
    order = torch.from_numpy(arrays["order"])
    optimizer = torch.optim.SGD(
        model.parameters(), lr=float(arrays["learning_rate"]), momentum=float(arrays["momentum"])
    )
    criterion = nn.CrossEntropyLoss()
    size = int(arrays["batch_size"])
    steps = len(order) // int(arrays["batch_size"])
    times = []
    cpu = []
    first = 0.0
    for epoch in range(1 + epochs):
        start = time.perf_counter()
        used = time.process_time()
        total = 0.0
        for index in order.split(size):
            optimizer.zero_grad()
            loss = criterion(model(x[index]), y[index])
            loss.backward()
            optimizer.step()
            total += loss.item()
        times.append((time.perf_counter() - start) / steps * 1000)
        cpu.append((time.process_time() - used) / steps * 1000)
        first = first if epoch else total / steps
    print(
        json.dumps(
            {"ms": times[1:], "cpu_ms": cpu[1:], "loss": first, "version": f"torch {torch.__version__}"}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
