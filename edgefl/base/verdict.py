"""The verdict on a federation: the model of each device beside the one it would have had alone.

The module has pure functions over the figures that the devices measured. A missing figure stays missing.
"""

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from edgefl.base.system.format import escape_unprintable, format_percent

DEFAULT_MEASURE = "accuracy"
"""The measure that devices report: a share from 0 to 1, where more is better."""
MEASURES = {DEFAULT_MEASURE: DEFAULT_MEASURE, "auc": "AUC", "r2": "R2"}
"""Names of the measures for readers, by the prefix of their figures. See
`edgefl.learning.client.measures`."""
ROUND_METRICS = (
    *("accuracy_shipped", "accuracy_mixture", "accuracy"),
    *("auc_shipped", "auc_mixture"),
    *("r2_shipped", "r2_mixture", "r2"),
)
"""The metrics that the figure of a round comes from. The first metric that a client reports is used."""
DEVICE_FIGURES = ("local", "federated", "shipped", "int8")
"""The figures of a device, in the order of the table columns."""
SHARE_PREFIX = "share_"
"""Prefix of a model's share in the blend that a device ships, a metric of the personalization."""
BLEND_KIND = "blend"
MODEL_KINDS = ("local", "federated", "fine-tuned", "mixture", BLEND_KIND)
"""The kinds of model that a device can ship, by the value of its metric `shipped`."""
TABLE_HEADINGS = ("device", *DEVICE_FIGURES, "model", "against local")
SIGNIFICANCE_LEVEL = 0.05
"""Level of the test of one device. In a federation it limits the expected share of false results among the
devices that are called better, and among those that are called worse."""
NORMAL_DEVIATION = 1.4826
"""Standard deviation of a normal distribution as a multiple of its median absolute deviation."""
MAX_EXACT_SAMPLES = 1000
MAX_TABLE_ROWS = 40
SUGGESTED_ALGORITHMS = ("clustered", "pfl-mfe")
"""Algorithms to try, in this order. None is suggested after a later one, so the advice has an end."""
UNTRAINED_LAYER_ALGORITHMS = ("fedper", "fedrep", "lg-fedavg")
"""Algorithms whose federated model has untrained layers, because their trained copies stay on the devices."""
MAJORITY = 0.5
CHANCE_MARGIN = 0.02
SMOOTHED_ROUNDS = 5
"""Number of rounds whose accuracies are averaged, to see whether the accuracy still rises."""
MIN_RISE_POINTS = 1.0
"""Smallest rise between two such averages that is worth further rounds, in percentage points."""
QUANTILE = statistics.NormalDist().inv_cdf(1 - SIGNIFICANCE_LEVEL)

Comparison = Literal["better", "as good", "worse", ""]
"""The shipped model compared with the local model. Empty if the counts to compare them are missing."""


@dataclass(frozen=True)
class DeviceFigures:
    """The figures of one device. Each figure is a share from 0 to 1, or None if it is missing.

    Attributes:
        id: the device.
        local: the model that the device would have had alone.
        federated: the federated model.
        shipped: the personal model that the device ships.
        int8: the shipped model after quantization.
        kind: the kind of model that the device ships, one of `MODEL_KINDS`. Empty if it is missing.
        comparison: the shipped model compared with the local model on the device's test samples.
    """

    id: str
    local: float | None = None
    federated: float | None = None
    shipped: float | None = None
    int8: float | None = None
    kind: str = ""
    comparison: Comparison = ""


@dataclass(frozen=True)
class FederationVerdict:
    """The benefit of a federation for its devices.

    Attributes:
        measure: name of the measure of the figures, such as `accuracy`.
        devices: number of devices that reported.
        means: mean of each of `DEVICE_FIGURES` over the devices that report it, None without such a device.
        worst: lowest value of each of `DEVICE_FIGURES`, None if no device reports it.
        better: number of devices whose shipped model is better than the local one, by McNemar's exact
            one-sided test, see `find_significance_level`.
        as_good: number of devices for which the test shows no difference.
        worse: number of devices whose shipped model is worse than the local one. Devices that do not report
            the counts are in none of the three numbers.
        overall: a test of the median gain over all devices, see `compare_typical_device`.
        gain_points: mean of shipped minus local over the devices that report both, in percentage points. None
            without such a device.
        kinds: number of devices that ship each of `MODEL_KINDS`.
        rows: the figures of the devices, sorted by id.
        sentence: the conclusion in plain English. It suggests a remedy if the federation was not worth it,
            or if its accuracy still rose.
        rise_points: how much the accuracy still rose, see `find_rise`. None if it did not, or if that is
            unknown.
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
    rise_points: float | None = None


def judge_federation(
    rows: Iterable[Mapping[str, Any]],
    *,
    measure: str = "",
    algorithm: str = "",
    num_classes: int = 0,
    select: bool = True,
    rounds: int = 0,
    accuracies: Sequence[float | None] = (),
) -> FederationVerdict:
    """Return the verdict on a federation.

    Args:
        rows: one mapping per device with `id` and its metrics, as in the `clients` of result.json. A figure
            counts as missing if it is None, not finite, or not between 0 and 1.
        measure: prefix of the figures' names. Empty takes the first of `MEASURES` that at least half of the
            devices report.
        algorithm: the federation's algorithm, which the sentence does not suggest again.
        num_classes: number of classes, to recognise a federated model at chance level. 0 if it is unknown.
        select: whether each device chose its model, `[personalization] select`.
        rounds: number of rounds in the configuration. 0 if it is unknown.
        accuracies: median accuracy of each round. None or NaN for a round without.
    """
    named_rows = sorted(((str(row["id"]), row) for row in rows), key=lambda item: item[0])
    measure = measure or find_measure(row for _, row in named_rows)
    counts = [item for _, row in named_rows if (item := _read_evidence(row, measure)) is not None]
    # A device whose two models agree on all test samples, such as one that ships its local model, is no test.
    tested_counts = [item for item in counts if any(item)]
    better_level = find_significance_level([sign_test(gained, lost) for gained, lost in tested_counts])
    worse_level = find_significance_level([sign_test(lost, gained) for gained, lost in tested_counts])
    devices = tuple(_read_device(name, row, measure, better_level, worse_level) for name, row in named_rows)
    comparisons = [item.comparison for item in devices]
    values = {
        name: [value for item in devices if (value := getattr(item, name)) is not None]
        for name in DEVICE_FIGURES
    }
    gains = [
        item.shipped - item.local for item in devices if item.shipped is not None and item.local is not None
    ]
    verdict = FederationVerdict(
        measure=MEASURES.get(measure, measure),
        devices=len(devices),
        means={name: math.fsum(item) / len(item) if item else None for name, item in values.items()},
        worst={name: min(item, default=None) for name, item in values.items()},
        better=comparisons.count("better"),
        as_good=comparisons.count("as good"),
        worse=comparisons.count("worse"),
        overall=compare_typical_device(counts),
        gain_points=100 * math.fsum(gains) / len(gains) if gains else None,
        kinds={kind: sum(item.kind == kind for item in devices) for kind in MODEL_KINDS},
        rows=devices,
        sentence="",
        rise_points=find_rise(accuracies),
    )
    tested = [_parse_count(row.get("n_test")) or 0 for _, row in named_rows]
    medians = {name: statistics.median(item) if item else None for name, item in values.items()}
    shares = _average_shares([row for _, row in named_rows])
    advice = _suggest_remedy(
        verdict,
        medians,
        statistics.median(gains) if gains else 0.0,
        algorithm,
        num_classes,
        int(len(tested) * statistics.median(tested)) if tested else 0,
        select,
        rounds,
        has_history=bool(_read_last_points(accuracies)),
        counts=tuple(len(counts) * statistics.median(item) for item in zip(*counts, strict=True)),
        local_share=shares.get("local", 0.0),
    )
    sentence = " ".join(filter(None, (_describe_outcome(verdict), _describe_shares(shares), advice)))
    return FederationVerdict(**{**vars(verdict), "sentence": sentence})


def find_rise(accuracies: Sequence[float | None]) -> float | None:
    """Return how much the accuracy still rose at the end, in percentage points, or None if it did not.

    The mean of the last five rounds is compared with the mean of the five rounds before. A rise counts from
    `MIN_RISE_POINTS` on, if it is more than twice its standard error. The spread of a round comes from the
    residuals of a straight line through the ten rounds, so a steady rise is no spread.

    Args:
        accuracies: median accuracy of each round, a share. None or NaN for a round without.

    Returns:
        The rise. None with fewer than ten rounds, or if one of the last ten has no accuracy.
    """
    last = _read_last_points(accuracies)
    if not last:
        return None
    rise = statistics.fmean(last[SMOOTHED_ROUNDS:]) - statistics.fmean(last[:SMOOTHED_ROUNDS])
    slope, start = statistics.linear_regression(range(len(last)), last)
    residuals = (value - start - slope * number for number, value in enumerate(last))
    variance = math.fsum(residual**2 for residual in residuals) / (len(last) - 2)
    error = math.sqrt(2 / SMOOTHED_ROUNDS * variance)
    return rise if rise >= max(MIN_RISE_POINTS, 2 * error) else None


def _read_last_points(accuracies: Sequence[float | None]) -> list[float]:
    """Return the accuracies of the last ten rounds in percent, or nothing if one of them is missing."""
    last = [math.nan if value is None else 100 * value for value in accuracies[-2 * SMOOTHED_ROUNDS :]]
    return last if len(last) == 2 * SMOOTHED_ROUNDS and all(map(math.isfinite, last)) else []


def find_measure(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the first of `MEASURES` that at least half of the devices report.

    A device reports a measure for the model that it ships or for its mixture.

    Args:
        rows: the figures of each device by name. Values of other types are ignored.
    """
    devices = list(rows)

    def count_reports(measure: str) -> int:
        names = (f"{measure}_shipped", f"{measure}_mixture")
        return sum(any(_parse_share(row.get(name)) is not None for name in names) for row in devices)

    return next(
        (measure for measure in MEASURES if 2 * count_reports(measure) >= max(len(devices), 1)),
        DEFAULT_MEASURE,
    )


def find_round_metric(names: Iterable[str]) -> str:
    """Return the metric that the figure of a round or of a device comes from.

    Args:
        names: names of the reported metrics.

    Returns:
        The first reported metric of `ROUND_METRICS`, or `accuracy` without any.
    """
    reported = set(names)
    return next((name for name in ROUND_METRICS if name in reported), DEFAULT_MEASURE)


def name_measure(metric: str) -> str:
    """Return the name of a metric's measure for readers, such as `R2` for `r2_shipped`.

    Args:
        metric: name of a metric. Its part before the first `_` counts.
    """
    return MEASURES.get(metric.partition("_")[0], DEFAULT_MEASURE)


def read_round_metric(record: Mapping[str, Any]) -> str:
    """Return the metric that `accuracy_mean`, `accuracy_p10` and `accuracy_p90` of a round come from.

    Args:
        record: the tree of a Summary, with the spread of each metric in `metrics`, or of a Record of the
            simulator, with the metrics of each client in `updates`. Values of other types are ignored.
    """
    metrics, updates = (
        value if isinstance(value := record.get(key), Mapping) else {} for key in ("metrics", "updates")
    )
    names = {name.removesuffix("_mean") for name in metrics if name.endswith("_mean")}
    clients = (client for client in updates.values() if isinstance(client, Mapping))
    return find_round_metric(names.union(*clients))


def sign_test(gained: int, lost: int) -> float:
    """Return the p-value of McNemar's exact one-sided test: P(X >= gained) of Binomial(gained + lost, 1/2).

    Above 1,000 discordant samples, the normal approximation with continuity correction is used.

    Args:
        gained: number of samples that only the first model predicts correctly.
        lost: number of samples that only the second model predicts correctly.

    Source: McNemar, Psychometrika 12 (1947). The exact form is the sign test of the discordant samples.
    """
    count = gained + lost
    if count > MAX_EXACT_SAMPLES:
        return 0.5 * math.erfc((gained - lost - 1) / math.sqrt(2 * count))
    total = term = math.comb(count, gained)
    for k in range(gained, count):
        term = term * (count - k) // (k + 1)
        total += term
    return total / (1 << count)


def find_significance_level(p_values: Sequence[float]) -> float:
    """Return the level at which one of many tests counts as significant.

    With 50 devices and models that are equally good, some devices would seem better at a level of 5%. Of the
    devices that are better at the returned level, at most 5% are expected to be so by chance.

    Source: Benjamini and Hochberg, Journal of the Royal Statistical Society B 57 (1995).
    """
    levels = (SIGNIFICANCE_LEVEL * (rank + 1) / len(p_values) for rank in range(len(p_values)))
    return max((level for p, level in zip(sorted(p_values), levels, strict=True) if p <= level), default=0.0)


def compare_with_local(
    gained: int,
    lost: int,
    better_level: float = SIGNIFICANCE_LEVEL,
    worse_level: float = SIGNIFICANCE_LEVEL,
) -> Comparison:
    """Return whether a model is better than another model, as good, or worse.

    Args:
        gained: number of test samples that only the model predicts correctly.
        lost: number of test samples that only the other model predicts correctly.
        better_level: highest p-value of a better model.
        worse_level: highest p-value of a worse model.
    """
    if sign_test(gained, lost) <= better_level:
        return "better"
    return "worse" if sign_test(lost, gained) <= worse_level else "as good"


def compare_typical_device(counts: Sequence[tuple[int, int]]) -> Comparison:
    """Return whether the models of all devices together are better than others, as good, or worse.

    The gain of a device is its number of samples that only the first model predicts correctly, minus the
    number that only the second one does. The median gain is compared with its standard error in a one-sided
    test at 5%. The spread of the gains comes from their median absolute deviation, and is at least the square
    root of the median number of those samples, as in McNemar's test. All three are medians, so fewer than
    half of the devices cannot move the result beyond what the counts of the other devices allow.

    A median of one or two devices is their mean. McNemar's exact test of all their samples takes its place.

    Args:
        counts: gained and lost samples of each device.

    Returns:
        The comparison. Empty without devices.

    Source: Huber, Robust Statistics, 1981, for the median absolute deviation as a scale. The median of n
    normal values has sqrt(pi / 2) times the standard error of their mean.
    """
    if not counts:
        return ""
    if len(counts) <= 2:
        return compare_with_local(sum(gained for gained, _ in counts), sum(lost for _, lost in counts))
    gains = [gained - lost for gained, lost in counts]
    typical = statistics.median(gains)
    spread = max(
        NORMAL_DEVIATION * statistics.median(abs(gain - typical) for gain in gains),
        math.sqrt(statistics.median(gained + lost for gained, lost in counts)),
    )
    error = math.sqrt(math.pi / 2 / len(counts)) * spread
    if not error or 0.5 * math.erfc(abs(typical) / error / math.sqrt(2)) > SIGNIFICANCE_LEVEL:
        return "as good"
    return "better" if typical > 0 else "worse"


def read_discordant_counts(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return `test_gained` and `test_lost` of a device, or None if they are not whole numbers."""
    gained, lost = _parse_count(row.get("test_gained")), _parse_count(row.get("test_lost"))
    return None if gained is None or lost is None else (gained, lost)


def as_dict(verdict: FederationVerdict) -> dict[str, Any]:
    """Return the verdict as a tree for JSON."""
    tree = asdict(verdict)
    return {**tree, "rows": list(tree["rows"])}


def from_dict(tree: Mapping[str, Any]) -> FederationVerdict:
    """Return the verdict from the tree that `as_dict` returned."""
    rows = tuple(DeviceFigures(**row) for row in tree["rows"])
    return FederationVerdict(**{**tree, "rows": rows})


def read_comparison_counts(tree: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of devices whose models are better, as good and worse than training alone.

    Args:
        tree: a verdict as a tree.

    Returns:
        The counts by name. Empty if no device could be compared.
    """
    counts = {name: tree[name] for name in ("better", "as_good", "worse")}
    return counts if any(counts.values()) else {}


def make_table_rows(verdict: FederationVerdict, limit: int = MAX_TABLE_ROWS) -> list[tuple[str, ...]]:
    """Return the table as cells: a heading, one row per device, the mean and the worst.

    Args:
        limit: maximum number of devices. If there are more, the devices that gained least are shown. 0 shows
            only the mean and the worst.
    """
    shown = select_least_gained(verdict.rows, limit)
    rows = [TABLE_HEADINGS, *map(_format_device_cells, shown)]
    if limit and len(shown) < len(verdict.rows):
        rows.append((f"({len(verdict.rows) - len(shown)} more)", *("",) * (len(rows[0]) - 1)))
    rows.append(("mean", *_format_cells(verdict.means), "", ""))
    rows.append(("worst", *_format_cells(verdict.worst), "", ""))
    return rows


def render_verdict_table(verdict: FederationVerdict, limit: int = MAX_TABLE_ROWS) -> str:
    """Return the table as aligned text, see `make_table_rows`.

    Args:
        limit: maximum number of devices.
    """
    return "\n".join(_align_rows(make_table_rows(verdict, limit)))


def render_verdict_lines(verdict: FederationVerdict, limit: int = MAX_TABLE_ROWS) -> list[str]:
    """Return the table and the sentence as lines of text, see `make_table_rows`.

    Args:
        limit: maximum number of devices.
    """
    return [*render_verdict_table(verdict, limit).splitlines(), escape_unprintable(verdict.sentence)]


def select_least_gained(rows: Sequence[DeviceFigures], limit: int) -> tuple[DeviceFigures, ...]:
    """Return the devices whose shipped model gained least, in their original order.

    Args:
        limit: maximum number of devices.
    """
    if len(rows) <= limit:
        return tuple(rows)

    def measure_gain(row: DeviceFigures) -> float:
        return row.shipped - row.local if row.shipped is not None and row.local is not None else math.inf

    chosen = set(sorted(range(len(rows)), key=lambda i: measure_gain(rows[i]))[:limit])
    return tuple(row for i, row in enumerate(rows) if i in chosen)


def render_device_lines(row: DeviceFigures, measure: str = DEFAULT_MEASURE) -> list[str]:
    """Return a device's row of the table and its sentence as lines of text.

    Args:
        measure: name of the measure in the sentence.
    """
    return [*_align_rows([TABLE_HEADINGS, _format_device_cells(row)]), describe_device_verdict(row, measure)]


def describe_device_verdict(row: DeviceFigures, measure: str = DEFAULT_MEASURE) -> str:
    """Return the sentence about a device's own model.

    Args:
        measure: name of the measure in the sentence.
    """
    kind = f"its {row.kind} model" if row.kind else "its model"
    if row.kind == BLEND_KIND:
        kind = "a blend of its models"
    if row.shipped is None:
        return f"{row.id} ships {kind}; its {measure} was not measured."
    start = f"{row.id} ships {kind} with {format_percent(row.shipped)} {measure}"
    if row.local is None:
        return f"{start}."
    alone = f"{format_percent(row.local)} if it had trained alone"
    if not row.comparison:
        return f"{start}, against {alone}."
    return f"{start}: {_THAN_LOCAL[row.comparison]} {alone}."


_THAN_LOCAL: Mapping[Comparison, str] = {
    "better": "better than",
    "as good": "as good, within chance, as",
    "worse": "worse than",
}


def estimate_chance_level(num_classes: int, tested: int) -> float:
    """Return the highest share of correct answers that counts as guessing.

    It is 1 / `num_classes`, plus two standard errors of a share of `tested` samples, plus 2 points because
    the classes are not equally frequent. It is 0 if the number of classes is unknown.

    Args:
        num_classes: number of classes. Below 2 it is unknown.
        tested: number of test samples of all devices.
    """
    if num_classes < 2:
        return 0.0
    chance = 1 / num_classes
    error = math.sqrt(chance * (1 - chance) / tested) if tested else 0.0
    return chance + 2 * error + CHANCE_MARGIN


def _is_chance(share: float, num_classes: int, tested: int) -> bool:
    return num_classes >= 2 and share <= estimate_chance_level(num_classes, tested)


def _read_device(
    name: str, row: Mapping[str, Any], measure: str, better_level: float, worse_level: float
) -> DeviceFigures:
    chosen = _find_shipped_name(row, measure)
    shipped = _parse_share(row.get(f"{measure}_{chosen}"))
    code = _parse_number(row.get("shipped"))
    kind = "mixture" if code is None and shipped is not None and chosen == "mixture" else ""
    if code is not None and code in range(len(MODEL_KINDS)):
        kind = MODEL_KINDS[int(code)]
    counts = _read_evidence(row, measure)
    return DeviceFigures(
        id=name,
        local=_parse_share(row.get(f"{measure}_local")),
        federated=_parse_share(row.get(f"{measure}_federated")),
        shipped=shipped,
        int8=_parse_share(row.get(f"{measure}_{chosen}_int8")),
        kind=kind,
        comparison=compare_with_local(*counts, better_level, worse_level) if counts else "",
    )


def _find_shipped_name(row: Mapping[str, Any], measure: str) -> str:
    """Return the name of the shipped model's figures. Without a selection, it is the algorithm's mixture."""
    return "shipped" if _parse_number(row.get(f"{measure}_shipped")) is not None else "mixture"


def _read_evidence(row: Mapping[str, Any], measure: str) -> tuple[int, int] | None:
    """Return the discordant counts of a device, or equal ones if its R2 contradicts them.

    In a regression a model may have the smaller error in most samples and still the lower R2, because of a
    few large errors. It is then neither better nor worse.
    """
    counts = read_discordant_counts(row)
    shipped = _parse_share(row.get(f"{measure}_{_find_shipped_name(row, measure)}"))
    local = _parse_share(row.get(f"{measure}_local"))
    if measure != "r2" or counts is None or shipped is None or local is None:
        return counts
    if (counts[0] - counts[1]) * (shipped - local) >= 0:
        return counts
    half = sum(counts) // 2
    return half, sum(counts) - half


def _parse_number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A file may contain an integer that is larger than any float.
    return float(value) if is_number and abs(value) <= sys.float_info.max else None


def _parse_share(value: Any) -> float | None:
    number = _parse_number(value)
    return number if number is not None and 0 <= number <= 1 else None


def _parse_count(value: Any) -> int | None:
    number = _parse_number(value)
    return int(number) if number is not None and 0 <= number < 2**53 and number == int(number) else None


def _format_cells(figures: Mapping[str, Any]) -> list[str]:
    return [format_percent(figures[name]) for name in DEVICE_FIGURES]


def _format_device_cells(row: DeviceFigures) -> tuple[str, ...]:
    return (escape_unprintable(row.id), *_format_cells(vars(row)), row.kind or "-", row.comparison or "-")


def _align_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    figures = range(1, 1 + len(DEVICE_FIGURES))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i in figures else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _describe_outcome(verdict: FederationVerdict) -> str:
    if not verdict.devices:
        return "No device reported figures, so nothing shows whether the federation was worth it."
    gain = verdict.gain_points
    if gain is None:
        return (
            f"No device reported its {verdict.measure} both alone and with the model that it ships, so "
            "nothing shows whether the federation was worth it."
        )
    way = "rises" if gain > 0 else "falls"
    # Few large losses can outweigh many small gains, and large errors weigh more in R2 than in the test.
    is_contrast = gain < 0 and (verdict.better or verdict.overall == "better")
    change = f"{'But on' if is_contrast else 'On'} average {verdict.measure} {way} by {abs(gain):.1f} points."
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
            f"The federation was worth it for {together}: the median gain over training alone is more than "
            f"chance ({others} by their own). {change}"
        )
    return (
        f"The federation was worth it for none of {devices}: no model is better than training alone beyond "
        f"chance ({others}). {change}"
    )


def _average_shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean share of each kind of model in the blends that devices ship, the largest first."""
    blends = [row for row in rows if _parse_number(row.get("shipped")) == MODEL_KINDS.index(BLEND_KIND)]
    keys = {kind: SHARE_PREFIX + kind.replace("-", "_") for kind in MODEL_KINDS}
    totals = {
        kind: math.fsum(_parse_share(row.get(key)) or 0.0 for row in blends) for kind, key in keys.items()
    }
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    return {kind: total / len(blends) for kind, total in ordered if total}


def _describe_shares(shares: Mapping[str, float]) -> str:
    if not shares:
        return ""
    named = [f"{format_percent(share)} {kind}" for kind, share in shares.items()]
    listed = f"{', '.join(named[:-1])}{' and ' if named[1:] else ''}{named[-1]}"
    return f"On average the shipped blends consist of {listed} model."


def _suggest_remedy(
    verdict: FederationVerdict,
    medians: Mapping[str, float | None],
    gain: float,
    algorithm: str,
    num_classes: int,
    tested: int,
    select: bool,
    rounds: int,
    *,
    has_history: bool,
    counts: Sequence[float],
    local_share: float,
) -> str:
    """Return the remedy that the medians over the devices suggest, or an empty string.

    Following it ends: each sentence leads to more rounds until the accuracy no longer rises, to a later
    algorithm of `SUGGESTED_ALGORITHMS`, or to none.

    Args:
        has_history: whether the accuracies of the rounds are known.
        counts: gained and lost samples of the typical device, times the number of devices. Empty without.
        local_share: mean share of the local models in the blends. 0 without blends.
    """
    local, federated, shipped = (medians[name] for name in ("local", "federated", "shipped"))
    if shipped is None or verdict.gain_points is None:
        return ""
    if _is_chance(shipped, num_classes, tested):
        return (
            f"The models are at chance ({format_percent(shipped)} with {num_classes} classes): look at "
            "the labels, then try a smaller learning_rate, or more rounds."
        )
    if algorithm == "local":
        return ""
    if verdict.rise_points is not None:
        setting = f"set rounds = {2 * rounds} in [federation]" if rounds else "train for more rounds"
        return (
            f"The accuracy still rose by {verdict.rise_points:.1f} points from five rounds to the last five: "
            f"{setting}."
        )
    compared = verdict.better + verdict.as_good + verdict.worse
    if (2 * verdict.better >= compared if compared else gain > 0) or verdict.overall == "better":
        return ""
    if algorithm in UNTRAINED_LAYER_ALGORITHMS:
        federated = None
    if federated is not None and _is_chance(federated, num_classes, tested):
        return (
            f"The federated model is at chance ({format_percent(federated)} with {num_classes} classes): "
            "try a smaller learning_rate, or more rounds."
        )
    if verdict.worse > verdict.better and not select:
        return "Set select = true in [personalization], so that a device compares its models."
    if local == 1:
        return (
            "Training alone makes no error on the test samples, so nothing can be better: check that the "
            "labels have several classes, or test on more samples."
        )
    remedies = _list_remedies(algorithm, has_history)
    gap = None if local is None or federated is None else local - federated
    if remedies and (gap is None or _is_beyond_chance(gap, local or 0.0, federated or 0.0, tested)):
        if local_share > MAJORITY:
            return (
                "The blends are mostly the local models: the data of the devices differ a lot, or each "
                f"device has enough. Try {remedies}."
            )
        if 2 * verdict.kinds["local"] > verdict.devices:
            return (
                "Most devices ship their local model: their data differ a lot, or each device has enough. "
                f"Try {remedies}."
            )
        if gap is not None:
            return f"The federated model is {100 * gap:.1f} points below training alone: try {remedies}."
    return _describe_sample_need(verdict.devices, tested, counts)


def _list_remedies(algorithm: str, has_history: bool) -> str:
    """Return the remedies for a federation whose accuracy does not rise, or an empty string."""
    start = SUGGESTED_ALGORITHMS.index(algorithm) + 1 if algorithm in SUGGESTED_ALGORITHMS else 0
    names = " or ".join(f'"{name}"' for name in SUGGESTED_ALGORITHMS[start:])
    remedies = (f"the algorithm {names}" if names else "", "" if has_history else "more rounds")
    return ", or ".join(filter(None, remedies))


def _is_beyond_chance(gap: float, share: float, other: float, tested: int) -> bool:
    """Return whether two shares of correct predictions differ by more than two standard errors.

    Both models predict the same samples, so the error of their difference is smaller than this one.
    """
    error = math.sqrt((share * (1 - share) + other * (1 - other)) / tested) if tested else 0.0
    return gap > 2 * error


def _describe_sample_need(devices: int, tested: int, counts: Sequence[float]) -> str:
    """Return the sentence about a difference that the test samples do not show.

    In m times the samples, m (g - l) more samples are gained than lost. Their standard error in McNemar's
    test is sqrt(m (g + l)). The difference is significant if it is `QUANTILE` times this error.
    """
    sentence = "Each device may have enough data of its own, or too few test samples to show a difference"
    gained, lost = counts or (0.0, 0.0)
    if gained <= lost or not tested:
        return f"{sentence}."
    # The error of a median is larger than the error of a mean, see `compare_typical_device`
    factor = math.pi / 2 if devices > 2 else 1.0
    needed = math.ceil(factor * tested * QUANTILE**2 * (gained + lost) / (gained - lost) ** 2)
    if needed <= tested:
        return f"{sentence}."
    return f"{sentence}: this one would show with about {needed:,} test samples, here are {tested:,}."
