"""Records how a shard was split into training and held-out samples. A model can carry this record.

The split depends on the federation's seed and on the sample file, not on the device. One record is therefore
valid for every device of a federation: under its rule, no device trains on samples that another device holds
out. The record names no sample and no device.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

BY_FILE = "x_test"
BY_GROUP = "group"
BY_RECORDING = "recording"
BY_WINDOW = "window_number"
IN_TIME = "time"
RULES: Mapping[str, str] = {
    BY_FILE: "the file itself contains its test samples",
    BY_GROUP: "whole groups of the array group are held out",
    BY_RECORDING: "whole recordings are held out; windows that overlap are on one side",
    BY_WINDOW: "blocks of readings are held out by a hash; a window stays on its side as the ring advances",
    IN_TIME: "the last samples of each class are held out: samples are assumed to be in time order, since "
    "there are no groups and no windows overlap",
}
"""Each split rule with its description."""
SPLIT_METADATA_NAME = "EDGEFL_SPLIT"
"""Name of the metadata entry of a model that contains the encoded split record."""
SPLIT_VERSION = 2
"""Version of the split rules.

Increase it when a rule selects other samples for the same seed. Records of the old version then no longer
describe the split.
"""


@dataclass(frozen=True)
class SplitRecord:
    """A record of how samples were held out.

    Attributes:
        rule: a name of `RULES`.
        seed: seed of the federation.
        train: number of training samples.
        test: number of held-out samples.
        overlapping: number of held-out windows that share samples with a training window. Only the rule
            `x_test` allows any. The encoded record omits this number.
    """

    rule: str
    seed: int
    train: int
    test: int
    overlapping: int = field(default=0, compare=False)

    @property
    def description(self) -> str:
        """Description of how the samples were held out."""
        if not self.overlapping:
            return RULES[self.rule]
        return (
            f"{RULES[self.rule]}; {self.overlapping} of {self.test} windows of x_test overlap training "
            "windows, so parts of them are used for training"
        )

    def allows_test_on(self, other: "SplitRecord") -> bool:
        """Return whether a model with this record was never trained on the samples that `other` holds out.

        The hash rule of a ring decides for each block independently. Every other rule uses all samples of a
        file, so another number of samples means another file.
        """
        if (self.rule, self.seed) != (other.rule, other.seed):
            return False
        return self.rule == BY_WINDOW or (self.train, self.test) == (other.train, other.test)


def encode_split(split: SplitRecord) -> bytes:
    """Encode a split record as JSON."""
    fields = asdict(split)
    del fields["overlapping"]
    return json.dumps({"version": SPLIT_VERSION, **fields}, separators=(",", ":")).encode()


def decode_split(content: bytes) -> SplitRecord | None:
    """Decode a split record, or return None if it is damaged or has another version."""
    try:
        fields = json.loads(content)
        if fields.pop("version") != SPLIT_VERSION:
            return None
        split = SplitRecord(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    counts = (split.seed, split.train, split.test, split.overlapping)
    return (
        split
        if type(split.rule) is str
        and split.rule in RULES
        and all(type(count) is int and count >= 0 for count in counts)
        else None
    )
