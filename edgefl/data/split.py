"""How a shard was split into training and held-out samples, as a note that can travel with a model.

The split depends on the federation's seed and on the sample file, not on the device. So one note holds for
the data of every device of a federation: no device trained on samples that another one holds out by this
rule. The note names no sample and no device.
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
    BY_FILE: "the file itself names its test samples",
    BY_GROUP: "whole groups are held out, as the array group names them",
    BY_RECORDING: "whole recordings are held out; windows that overlap are on one side",
    BY_WINDOW: "blocks of readings are held out by a hash; a window keeps its side as the ring moves on",
    IN_TIME: "the last samples of each class are held out: samples count as being in time order, since no "
    "group is named and no windows overlap",
}
"""Each rule, and what it does in words."""
SPLIT_METADATA_NAME = "EDGEFL_SPLIT"
"""Name of the entry in a model's metadata that holds the encoded split."""
SPLIT_VERSION = 2
"""Raise it when a rule gives other samples for the same seed: then a note of the old version no longer tells
the split.
"""


@dataclass(frozen=True)
class SplitRecord:
    """How samples were held out.

    Args:
        rule: a name of `RULES`.
        seed: the federation's seed.
        train: number of training samples.
        test: number of held-out samples.
        overlapping: number of held-out windows that share a part with a training window. The rule `x_test`
            alone allows any. The note of a model does not hold this number.
    """

    rule: str
    seed: int
    train: int
    test: int
    overlapping: int = field(default=0, compare=False)

    @property
    def description(self) -> str:
        """How samples were held out, in words."""
        if not self.overlapping:
            return RULES[self.rule]
        return (
            f"{RULES[self.rule]}; {self.overlapping} of {self.test} windows of x_test overlap training "
            "windows, so a part of them is trained on"
        )

    def allows_test_on(self, other: "SplitRecord") -> bool:
        """Return whether a model with this note was never trained on the samples that `other` holds out.

        The hash of a ring decides for each block alone. Every other rule looks at all samples of a file, so
        another number of samples means another file.
        """
        if (self.rule, self.seed) != (other.rule, other.seed):
            return False
        return self.rule == BY_WINDOW or (self.train, self.test) == (other.train, other.test)


def encode_split(split: SplitRecord) -> bytes:
    """Return the note as JSON."""
    fields = asdict(split)
    del fields["overlapping"]
    return json.dumps({"version": SPLIT_VERSION, **fields}, separators=(",", ":")).encode()


def decode_split(content: bytes) -> SplitRecord | None:
    """Return the note, or None when it is damaged or of another version: then the split is not known."""
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
