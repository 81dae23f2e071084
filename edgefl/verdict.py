"""Whether a federation was worth it: each device's model beside the one that it would have had alone.

Pure functions over the figures that the devices measured. A missing figure stays missing.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from edgefl.system.format import percent, printable

MEASURE = "accuracy"
"""The measure that devices report today: a share between 0 and 1, and more is better."""
FIGURES = ("local", "federated", "shipped", "int8")
"""The figures of a device, in the order of the table's columns."""
KINDS = ("local", "federated", "fine-tuned", "mixture")
"""The kinds of model that a device can ship, by the value of its metric `shipped`."""
HEADINGS = ("device", *FIGURES, "model", "against local")
SIGNIFICANCE = 0.05
MAX_EXACT_SAMPLES = 1000
MAX_TABLE_ROWS = 40
SUGGESTED_ALGORITHMS = ("clustered", "pfl-mfe")
CHANCE_MARGIN = 0.02

Comparison = Literal["better", "as good", "worse", ""]
"""A shipped model against the local one; empty where the counts to compare them are missing."""


@dataclass(frozen=True)
class DeviceFigures:
    """The figures of one device.

    Attributes:
        id: the device.
        local: what the device would have had alone, a share between 0 and 1, None where it is missing. The
            next three likewise.
        federated: the model of the federation.
        shipped: the personal model that the device takes away.
        int8: the same after quantization.
        kind: which kind of model the device ships, one of `KINDS`, empty where it is missing.
        comparison: the shipped model against the local one on the device's test samples.
    """

    id: str
    local: float | None = None
    federated: float | None = None
    shipped: float | None = None
    int8: float | None = None
    kind: str = ""
    comparison: Comparison = ""


@dataclass(frozen=True)
class Verdict:
    """What a federation gave its devices.

    Attributes:
        measure: what the figures measure, such as `accuracy`.
        devices: how many devices reported.
        means: the mean of each of `FIGURES` over the devices that report it; None where no device does.
        worst: the lowest value of each of `FIGURES`; None where no device reports it.
        better: devices whose shipped model is better than their local one (McNemar's exact one-sided test at
            5%).
        as_good: devices where the test shows no difference.
        worse: devices whose shipped model is worse than their local one. Devices that do not report the
            counts are in none of the three numbers.
        overall: the same test over the test samples of all devices.
        gain_points: mean of shipped minus local over the devices that report both, in percentage points;
            None where no device does.
        kinds: how many devices ship each of `KINDS`.
        rows: the devices, sorted by id.
        sentence: the conclusion in plain English, with what to try if the federation was not worth it.
    """

    measure: str
    devices: int
    means: Mapping[str, float | None]
    worst: Mapping[str, float | None]
    better: int
    as_good: int
    worse: int
    overall: Comparison
    gain_points: float | None
    kinds: Mapping[str, int]
    rows: tuple[DeviceFigures, ...]
    sentence: str


def judge(
    rows: Iterable[Mapping[str, Any]],
    *,
    measure: str = MEASURE,
    algorithm: str = "",
    num_classes: int = 0,
    select: bool = True,
) -> Verdict:
    """Return the verdict on a federation.

    Args:
        rows: one mapping per device with `id` and its metrics, as in the `clients` of result.json. A figure
            that is missing, None, not finite or not between 0 and 1 counts as missing.
        measure: the first part of the figures' names.
        algorithm: the federation's algorithm, which the sentence does not suggest again.
        num_classes: the number of classes, to recognise a federated model at chance; 0 where it is unknown.
        select: whether each device chose its model, `[personalization] select`.
    """
    found = sorted(((str(row["id"]), row) for row in rows), key=lambda each: each[0])
    devices = tuple(_device(name, row, measure) for name, row in found)
    counts = [each for _, row in found if (each := discordant_counts(row)) is not None]
    comparisons = [each.comparison for each in devices]
    values = {
        name: [value for each in devices if (value := getattr(each, name)) is not None] for name in FIGURES
    }
    gains = [
        each.shipped - each.local for each in devices if each.shipped is not None and each.local is not None
    ]
    verdict = Verdict(
        measure=measure,
        devices=len(devices),
        means={name: math.fsum(each) / len(each) if each else None for name, each in values.items()},
        worst={name: min(each, default=None) for name, each in values.items()},
        better=comparisons.count("better"),
        as_good=comparisons.count("as good"),
        worse=comparisons.count("worse"),
        overall=compare(sum(each[0] for each in counts), sum(each[1] for each in counts)) if counts else "",
        gain_points=100 * math.fsum(gains) / len(gains) if gains else None,
        kinds={kind: sum(each.kind == kind for each in devices) for kind in KINDS},
        rows=devices,
        sentence="",
    )
    tested = sum(_count(row.get("n_test")) or 0 for _, row in found)
    advice = _advice(verdict, algorithm, num_classes, tested, select)
    sentence = " ".join(filter(None, (_finding(verdict), advice)))
    return Verdict(**{**vars(verdict), "sentence": sentence})


def sign_test(gained: int, lost: int) -> float:
    """Return the p-value of McNemar's exact one-sided test: P(X >= gained) of Binomial(gained + lost, 1/2).

    Above 1,000 samples that differ, the normal approximation with continuity correction takes its place.

    Source: McNemar, Psychometrika 12 (1947); the exact form is the sign test of the samples that differ.
    """
    count = gained + lost
    if count > MAX_EXACT_SAMPLES:
        return 0.5 * math.erfc((gained - lost - 1) / math.sqrt(2 * count))
    total = term = math.comb(count, gained)
    for k in range(gained, count):
        term = term * (count - k) // (k + 1)
        total += term
    return total / (1 << count)


def compare(gained: int, lost: int) -> Comparison:
    """Return whether a model is better than another one.

    Args:
        gained: test samples that the model gets right and the other one wrong.
        lost: the other way round.
    """
    if sign_test(gained, lost) <= SIGNIFICANCE:
        return "better"
    return "worse" if sign_test(lost, gained) <= SIGNIFICANCE else "as good"


def discordant_counts(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return `test_gained` and `test_lost` of a device, None where they are not whole numbers."""
    gained, lost = _count(row.get("test_gained")), _count(row.get("test_lost"))
    return None if gained is None or lost is None else (gained, lost)


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as a tree for JSON."""
    tree = asdict(verdict)
    return {**tree, "rows": list(tree["rows"])}


def from_dict(tree: Mapping[str, Any]) -> Verdict:
    """Return the verdict of such a tree."""
    rows = tuple(DeviceFigures(**row) for row in tree["rows"])
    return Verdict(**{**tree, "rows": rows})


def comparison_counts(tree: Mapping[str, Any]) -> dict[str, int]:
    """Return how many devices' models are better, as good and worse than alone.

    Args:
        tree: a verdict as a tree. Where no device could be compared, the counts are left out.
    """
    counts = {name: tree[name] for name in ("better", "as_good", "worse")}
    return counts if any(counts.values()) else {}


def table_rows(verdict: Verdict, limit: int = MAX_TABLE_ROWS) -> list[tuple[str, ...]]:
    """Return the table as cells: a heading, one row per device, the mean and the worst.

    Args:
        verdict: the verdict.
        limit: at most so many devices; of more, those that gained least. 0: mean and worst only.
    """
    shown = least_gained(verdict.rows, limit)
    rows = [HEADINGS, *map(_device_cells, shown)]
    if limit and len(shown) < len(verdict.rows):
        rows.append((f"({len(verdict.rows) - len(shown)} more)", *("",) * (len(rows[0]) - 1)))
    rows.append(("mean", *_cells(verdict.means), "", ""))
    rows.append(("worst", *_cells(verdict.worst), "", ""))
    return rows


def table(verdict: Verdict, limit: int = MAX_TABLE_ROWS) -> str:
    """Return the table as aligned text, see `table_rows`."""
    return "\n".join(_aligned(table_rows(verdict, limit)))


def lines(verdict: Verdict, limit: int = MAX_TABLE_ROWS) -> list[str]:
    """Return the table and the sentence as lines of text."""
    return [*table(verdict, limit).splitlines(), printable(verdict.sentence)]


def least_gained(rows: Sequence[DeviceFigures], limit: int) -> tuple[DeviceFigures, ...]:
    """Return at most so many devices, those whose shipped model gained least, in their order."""
    if len(rows) <= limit:
        return tuple(rows)

    def gain(row: DeviceFigures) -> float:
        return row.shipped - row.local if row.shipped is not None and row.local is not None else math.inf

    chosen = set(sorted(range(len(rows)), key=lambda i: gain(rows[i]))[:limit])
    return tuple(row for i, row in enumerate(rows) if i in chosen)


def device_lines(row: DeviceFigures, measure: str = MEASURE) -> list[str]:
    """Return a device's own row of the table and its sentence as lines of text."""
    return [*_aligned([HEADINGS, _device_cells(row)]), device_sentence(row, measure)]


def device_sentence(row: DeviceFigures, measure: str = MEASURE) -> str:
    """Return what a device says of its own model."""
    kind = f"its {row.kind} model" if row.kind else "its model"
    if row.shipped is None:
        return f"{row.id} ships {kind}; its {measure} was not measured."
    start = f"{row.id} ships {kind} with {percent(row.shipped)} {measure}"
    if row.local is None:
        return f"{start}."
    alone = f"{percent(row.local)} if it had trained alone"
    if not row.comparison:
        return f"{start}, against {alone}."
    return f"{start}: {_THAN_LOCAL[row.comparison]} {alone}."


_THAN_LOCAL: Mapping[Comparison, str] = {
    "better": "better than",
    "as good": "as good, within chance, as",
    "worse": "worse than",
}


def chance_level(num_classes: int, tested: int) -> float:
    """Return the highest share of correct answers that counts as guessing.

    It is 1 / `num_classes`, plus two standard errors of a share of `tested` samples, plus 2 points, since the
    classes are not equally frequent. 0 where the number of classes is not known.

    Args:
        num_classes: the number of classes; below 2 it is not known.
        tested: the number of test samples of all devices.
    """
    if num_classes < 2:
        return 0.0
    chance = 1 / num_classes
    error = math.sqrt(chance * (1 - chance) / tested) if tested else 0.0
    return chance + 2 * error + CHANCE_MARGIN


def _is_chance(share: float, num_classes: int, tested: int) -> bool:
    return num_classes >= 2 and share <= chance_level(num_classes, tested)


def _device(name: str, row: Mapping[str, Any], measure: str) -> DeviceFigures:
    # without a selection the algorithm's own mixture is shipped
    chosen = "shipped" if _number(row.get(f"{measure}_shipped")) is not None else "mixture"
    shipped = _share(row.get(f"{measure}_{chosen}"))
    code = _number(row.get("shipped"))
    kind = "mixture" if code is None and shipped is not None and chosen == "mixture" else ""
    if code is not None and code in range(len(KINDS)):
        kind = KINDS[int(code)]
    counts = discordant_counts(row)
    return DeviceFigures(
        id=name,
        local=_share(row.get(f"{measure}_local")),
        federated=_share(row.get(f"{measure}_federated")),
        shipped=shipped,
        int8=_share(row.get(f"{measure}_{chosen}_int8")),
        kind=kind,
        comparison=compare(*counts) if counts else "",
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # a file may hold a whole number that is larger than any float
    return float(value) if is_number and abs(value) <= sys.float_info.max else None


def _share(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and 0 <= number <= 1 else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and 0 <= number < 2**53 and number == int(number) else None


def _cells(figures: Mapping[str, Any]) -> list[str]:
    return [percent(figures[name]) for name in FIGURES]


def _device_cells(row: DeviceFigures) -> tuple[str, ...]:
    return (printable(row.id), *_cells(vars(row)), row.kind or "-", row.comparison or "-")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    figures = range(1, 1 + len(FIGURES))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i in figures else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _finding(verdict: Verdict) -> str:
    if not verdict.devices:
        return "No device reported figures, so nothing shows whether the federation was worth it."
    gain = verdict.gain_points
    if gain is None:
        return (
            f"No device reported its {verdict.measure} both alone and with the model that it ships, so "
            "nothing shows whether the federation was worth it."
        )
    way = "rises" if gain > 0 else "falls"
    change = f"On average {verdict.measure} {way} by {abs(gain):.1f} points."
    if round(abs(gain), 1) == 0:
        change = f"On average {verdict.measure} stays the same."
    compared = verdict.better + verdict.as_good + verdict.worse
    if not compared:
        return f"{change} The devices did not report for how many of them that is more than chance."
    others = f"as good for {verdict.as_good or 'none'}, worse for {verdict.worse or 'none'}"
    devices = f"{compared} device{'s' if compared > 1 else ''}"
    if compared < verdict.devices:
        devices = f"the {devices} that could be compared"
    if verdict.better:
        better = "its model is" if verdict.better == 1 else "their models are"
        return (
            f"The federation was worth it for {verdict.better} of {devices}: {better} better than training "
            f"alone ({others}). {change}"
        )
    if verdict.overall == "better":
        together = f"the {compared} devices together" if compared > 1 else "the device"
        return (
            f"The federation was worth it for {together}: over all test samples their models are "
            f"better than training alone ({others} by their own). {change}"
        )
    return (
        f"The federation was worth it for none of {devices}: no model is better than training alone beyond "
        f"chance ({others}). {change}"
    )


def _advice(verdict: Verdict, algorithm: str, num_classes: int, tested: int, select: bool) -> str:
    local, federated, shipped = (verdict.means[name] for name in ("local", "federated", "shipped"))
    if shipped is None or verdict.gain_points is None:
        return ""
    if _is_chance(shipped, num_classes, tested):
        return (
            f"The models are at chance ({percent(shipped)} with {num_classes} classes): look at the labels, "
            "then try a smaller learning_rate, or more rounds."
        )
    compared = verdict.better + verdict.as_good + verdict.worse
    gained = verdict.gain_points > 0
    if (2 * verdict.better >= compared if compared else gained) or verdict.overall == "better":
        return ""
    if federated is not None and _is_chance(federated, num_classes, tested):
        return (
            f"The federated model is at chance ({percent(federated)} with {num_classes} classes): try a "
            "smaller learning_rate, or more rounds."
        )
    others = " or ".join(f'"{name}"' for name in SUGGESTED_ALGORITHMS if name != algorithm)
    if verdict.worse > verdict.better and not select:
        return "Set select = true in [personalization], so that a device can keep its local model."
    if 2 * verdict.kinds["local"] > verdict.devices:
        return (
            "Most devices ship their local model: their data differ a lot, or each device has enough. Try "
            f"the algorithm {others}, or more rounds."
        )
    if local is not None and federated is not None and federated < local:
        return (
            f"The federated model is {100 * (local - federated):.1f} points below training alone: try more "
            f"rounds, or the algorithm {others}."
        )
    return "Each device may have enough data of its own, or too few test samples to show a difference."
