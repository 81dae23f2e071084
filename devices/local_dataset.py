"""The local dataset of a device. It is read from its source for a plan and then stays in memory."""

from edgefl.data.forms import describe_shape_change
from edgefl.data.npz import LoadedSamples
from edgefl.data.sources import DataSource, load_samples, load_samples_for_plan
from edgefl.plan.spec import PlanSpec
from edgefl.types import Shard


class LocalDataset:
    """The shard of one device. It is read again only for another plan or another seed of the split.

    Args:
        source: where the samples are.

    Attributes:
        source: where the samples are.
        changes: one sentence for each conversion of the stored arrays to the form of training.

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
