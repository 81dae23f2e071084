"""The local dataset of a device. It is read from its source once and then stays in memory."""

from dataclasses import replace

from edgefl.data.forms import (
    describe_shape_change,
    has_label_arrays,
    split_targets,
    to_input_shape,
    to_training_form,
)
from edgefl.data.npz import find_num_classes, make_shard
from edgefl.data.sources import DataSource, read_source
from edgefl.errors import DataError
from edgefl.types import Shard


class LocalDataset:
    """The shard of one device. It is read again only for another seed of the split.

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
        self._shard = self._read(1)

    def _read(self, seed: int) -> Shard:
        stored = read_source(self.source)
        arrays, self.changes = to_training_form(split_targets(stored))
        self._names = {key: arrays[key] for key in ("class_names",) if key in arrays}
        self._seed = seed
        shard = make_shard(arrays, self.source.data, seed=seed)
        return replace(shard, has_labels=has_label_arrays(stored))

    def load_shard(
        self,
        seed: int | None = None,
        num_classes: int | None = None,
        input_shape: tuple[int, ...] | None = None,
    ) -> Shard:
        """Return the shard of this device.

        Args:
            seed: seed of the split. None uses the last seed, which is 1 at first.
            num_classes: number of classes of the federation. None counts the classes of the samples.
            input_shape: input shape of the federation's model, see `to_input_shape`. None does not change the
                shape of the samples.

        Raises:
            DataError: a label is out of range, or the samples cannot be read again.
        """
        if seed is not None and seed != self._seed:
            del self._shard  # Frees the memory before the next shard is read
            self._shard = self._read(seed)
        largest = int(max(self._shard.y_train.max(), self._shard.y_test.max()))
        try:
            count = (
                self._shard.num_classes
                if num_classes is None
                else find_num_classes(self._names, num_classes, largest)
            )
        except DataError as error:
            raise DataError(f"{self.source.data}: {error}") from error
        shard = replace(self._shard, num_classes=count)
        if input_shape is None:
            return shard
        return replace(
            shard,
            x_train=to_input_shape(shard.x_train, input_shape),
            x_test=to_input_shape(shard.x_test, input_shape),
        )

    def describe_shape_change(self, input_shape: tuple[int, ...]) -> str:
        """Return a sentence on how samples are reshaped for a model, empty if they have the input shape.

        Args:
            input_shape: input shape of the model.
        """
        return describe_shape_change(self._shard.x_train.shape[1:], input_shape)
