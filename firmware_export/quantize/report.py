"""What an export says of itself: the figures of report.json."""

from dataclasses import asdict, dataclass
from typing import Any

MIN_MEASURED_SAMPLES = 30
"""Held-out samples below which a measured accuracy says next to nothing."""


def find_warnings(answers: Any) -> tuple[str, ...]:
    """Return why measurements on these answers prove little.

    Args:
        answers: Outputs of the integer model, [samples, classes].

    Returns:
        A sentence for each reason: too few samples, or one class for all of them.
    """
    warnings = []
    if len(answers) < MIN_MEASURED_SAMPLES:
        warnings.append(
            f"{len(answers)} samples prove little, expected {MIN_MEASURED_SAMPLES} or more; collect more "
            f"on this "
            "device, or give others by --data"
        )
    classes = {int(answer) for answer in answers.argmax(axis=1)}
    if len(classes) == 1 and len(answers) > 1:
        warnings.append(
            f"the int8 model answers class {classes.pop()} for all {len(answers)} samples, so equal outputs "
            "prove little of its layers; train for more rounds, or look at the classes of the samples"
        )
    return tuple(warnings)


@dataclass(frozen=True)
class QuantizationAttempt:
    """One recipe, what it used, and what it gave.

    Agreement is the share of samples with the float model's answer.
    """

    recipe: str
    calibration_samples: int
    accuracy_int8: float
    agreement: float


@dataclass(frozen=True)
class ExportReport:
    """What was exported and what was measured.

    `within_one_point` False: every remedy was tried and this is the best.

    route: device or tensorflow; activation_bits: 8 or 16; mixing: what the graph mixes (`mixing_of`);
    deflated_bytes: of the model when zlib packs it, which is where pruned and clustered weights show;
    warnings: see `warnings_of`. held_out: the rule that held out the samples, in words.
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
    tried: tuple[QuantizationAttempt, ...]
    runtime: str
    quantizer: str
    peak_rss_mb: float
    seed: int
    client_id: str
    route: str
    activation_bits: int
    mixing: str
    deflated_bytes: int
    warnings: tuple[str, ...] = ()
    held_out: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as what JSON holds."""
        return asdict(self)
