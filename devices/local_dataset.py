"""The local dataset of a device. It is read from its source for a plan and then stays in memory."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.types import Shard
from edgefl.data.forms import describe_shape_change
from edgefl.data.npz import LoadedSamples
from edgefl.data.sources import DataSource, load_samples, load_samples_for_plan
from edgefl.data.split import BY_WINDOW
from edgefl.program.plan.spec import PlanSpec

SKETCH_SIZE = 32


def hash_samples(shard: Shard) -> NDArray[np.uint64]:
    """Return the digests of all samples of a shard, sorted, shape (n,), uint64. Labels are not hashed."""
    digests = [
        int.from_bytes(blake2b(np.ascontiguousarray(sample).tobytes(), digest_size=8).digest(), "big")
        for part in (shard.x_train, shard.x_test)
        for sample in part
    ]
    return np.unique(np.array(digests, np.uint64))


def _format_digests(digests: NDArray[np.uint64]) -> list[str]:
    return [f"{digest:016x}" for digest in digests.tolist()]


class LocalDataset:
    """The shard of one device. It is read again only for another plan or another seed of the split.

    Args:
        source: where the samples are.

    Attributes:
        source: where the samples are.
        changes: one sentence for each conversion of the stored arrays to the form of training.
        num_samples: number of training samples.

    Raises:
        DataError: the samples cannot be read.
    """

    def __init__(self, source: DataSource) -> None:
        self.source = source
        self._loaded: LoadedSamples | None = load_samples(source, any_task=True)
        self._key: tuple[PlanSpec, int] | None = None
        self._seed = 1
        self.changes = self._loaded.changes
        self.num_samples = len(self._loaded.shard.y_train)
        self._stored_shape = self._loaded.shard.x_train.shape[1:]
        self._is_ring = self._loaded.split.rule == BY_WINDOW
        self._digests = hash_samples(self._loaded.shard)

    @property
    def sketch(self) -> list[str]:
        """The smallest digests of samples, in hex. They stay when samples are added."""
        return _format_digests(self._digests[:SKETCH_SIZE])

    def check_sketch(self, sketch: Sequence[str], state: Path) -> str:
        """Compare the samples with the samples of an earlier start, for a federation that still runs.

        Samples may be added, and a ring moves on. Only completely different samples are refused.

        Args:
            state: the state directory, for the error.

        Returns:
            A sentence about samples that are gone, empty if all are present.

        Raises:
            DataError: all samples are different, and the source is no ring.
        """
        present = len(set(_format_digests(self._digests)) & set(sketch))
        if present == len(sketch):
            return ""
        comparison = (
            f"{present} of {len(sketch)} compared samples of the last start are still in {self.source.data}"
        )
        if present or self._is_ring:
            return comparison
        raise DataError(
            f"{comparison}, but its federation still runs, expected the samples that {state} has trained on; "
            "restore them, or start a new device with another --state and another --id"
        )

    def load_shard(self, spec: PlanSpec, seed: int | None = None) -> Shard:
        """Return the shard of this device for a plan.

        Args:
            spec: the spec of the plan, which states unit and layout of the samples.
            seed: seed of the split, which is the seed of the federation. None uses the last seed, which is 1
                at first.

        Raises:
            DataError: the samples do not fit the plan, or cannot be read again.
            PlanError: this version of edgefl does not know how the plan reads samples.
        """
        key = spec, self._seed if seed is None else seed
        if self._loaded is None or self._key != key:
            self._loaded = None  # Frees the memory before the next shard is read
            self._loaded = load_samples_for_plan(self.source, spec, seed=key[1])
            self._key = key
            self._seed = key[1]
            self.changes = self._loaded.changes
        return self._loaded.shard

    def describe_shape_change(self, input_shape: tuple[int, ...]) -> str:
        """Return a sentence on how samples are reshaped for a model, empty if they have the input shape.

        Args:
            input_shape: input shape of the model.
        """
        return describe_shape_change(self._stored_shape, input_shape)
