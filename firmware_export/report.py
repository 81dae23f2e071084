"""What an export says of itself: the figures of report.json."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Attempt:
    """One recipe, what it used, and what it gave; agreement is the share of samples with the float model's answer."""

    recipe: str
    calibration_samples: int
    accuracy_int8: float
    agreement: float


@dataclass(frozen=True)
class ExportReport:
    """What was exported and what was measured. `within_one_point` False: every remedy was tried and this is the best.

    route: device or tensorflow; activation_bits: 8 or 16; mixing: what the graph mixes (`mixing_of`); deflated_bytes: of the model when
    zlib packs it, which is where pruned and clustered weights show.
    """

    accuracy_float: float
    accuracy_int8: float
    agreement: float
    within_one_point: bool
    measured_on: str
    num_test: int
    tflite_bytes: int
    float_bytes: int
    sha256: str
    recipe: str
    calibration_samples: int
    tried: tuple[Attempt, ...]
    runtime: str
    quantizer: str
    peak_rss_mb: float
    seed: int
    client_id: str
    route: str
    activation_bits: int
    mixing: str
    deflated_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as what JSON holds."""
        return asdict(self)
