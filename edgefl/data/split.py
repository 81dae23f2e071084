"""How a shard was split into training and held-out samples, as a note that can travel with a model.

The split depends on the federation's seed and on the file, not on the device. So one note holds for the data
of every device of a federation: what one device holds out by this rule, no device trained on. The note names
no sample and no device.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgefl.types import Shard

BY_FILE = "x_test"
BY_WINDOW = "window_number"
DRAWN = "drawn"
RULES = (BY_FILE, BY_WINDOW, DRAWN)
METADATA_NAME = "EDGEFL_SPLIT"
"""Name of the entry in a model's metadata that holds the encoded split."""
VERSION = 1
"""Raise it when a rule gives other samples for the same seed: then a note of the old version no longer tells
the split.
"""


@dataclass(frozen=True)
class Split:
    """How samples were held out.

    Args:
        rule: `x_test` when the file itself names its test samples, `window_number` when the number of a
            window decides, `drawn` when a permutation of all samples decides.
        seed: the federation's seed.
        train: number of training samples.
        test: number of held-out samples.
    """

    rule: str
    seed: int
    train: int
    test: int

    def covers(self, other: "Split") -> bool:
        """Whether a model with this note was never trained on what `other` holds out.

        A rule that draws from all samples gives other samples for another number of them.
        """
        if (self.rule, self.seed) != (other.rule, other.seed):
            return False
        return self.rule == BY_WINDOW or (self.train, self.test) == (other.train, other.test)


def split_of(arrays: Mapping[str, Any], shard: Shard, seed: int) -> Split:
    """Return the note of a shard that `make_shard` made of these arrays with this seed."""
    if "x_test" in arrays or "y_test" in arrays:
        rule = BY_FILE
    else:
        rule = BY_WINDOW if "window_number" in arrays else DRAWN
    return Split(rule, seed, len(shard.y_train), len(shard.y_test))


def encode_split(split: Split) -> bytes:
    """Return the note as JSON."""
    return json.dumps({"version": VERSION, **asdict(split)}, separators=(",", ":")).encode()


def decode_split(content: bytes) -> Split | None:
    """Return the note, or None when it is damaged or of another version: then the split is not known."""
    try:
        fields = json.loads(content)
        if fields.pop("version") != VERSION:
            return None
        split = Split(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    counts = (split.seed, split.train, split.test)
    return (
        split if split.rule in RULES and all(type(count) is int and count >= 0 for count in counts) else None
    )
