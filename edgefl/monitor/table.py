"""A snapshot as lines of text: the federation's head, a row a device, sorted and filtered. Pure functions."""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.monitor.device_activity import WORDS
from edgefl.system import format as words
from edgefl.verdict import MAX_TABLE_ROWS, from_dict, table
from edgefl.wire.messages import JOINING, STOPPED

Device = Mapping[str, Any]
Tree = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """`width`: in characters, 0 for all that is left.

    `narrow`: whether it is shown in 80 columns too; `key`: what it is sorted by.
    """

    name: str
    width: int
    narrow: bool
    text: Callable[[Device, float], str]
    key: Callable[[Device], Any]
    right: bool = False


def _shown(key: str, text: Callable[[Any], str]) -> Callable[[Device, float], str]:
    return lambda device, now: text(device[key])


def _of(key: str) -> Callable[[Device], Any]:
    return lambda device: device[key]


def _state(device: Device) -> tuple[int, bool]:
    return WORDS.index(device["state"]), not device["slow"]


def _word(device: Device, now: float) -> str:
    return "slow" if device["slow"] and device["state"] == "training" else str(device["state"])


def _whole(value: int | None) -> str:
    return words.NONE if value is None else str(value)


def _tenth(value: float | None) -> str:
    return words.number(value, 1)


def _rounded(value: float | None) -> str:
    return words.number(value, 0)


COLUMNS = (
    Column("device", 14, True, lambda device, now: str(device["id"]), _of("id")),
    Column("state", 8, True, _word, _state),
    Column("round", 5, True, _shown("round", _whole), _of("round"), right=True),
    Column("acc", 6, True, _shown("accuracy", words.percent), _of("accuracy"), right=True),
    Column("loss", 7, True, _shown("loss", words.number), _of("loss"), right=True),
    Column("exp", 3, False, _shown("expert", _whole), _of("expert"), right=True),
    Column("s", 6, False, _shown("seconds", _tenth), _of("seconds"), right=True),
    Column("MB", 5, False, _shown("rss_mb", _rounded), _of("rss_mb"), right=True),
    Column("°C", 4, False, _shown("temperature_c", _rounded), _of("temperature_c"), right=True),
    Column("up", 7, False, _shown("bytes_up", words.size), _of("bytes_up"), right=True),
    Column(
        "seen",
        6,
        True,
        lambda device, now: words.ago(device["last_seen_ts"], now),
        _of("last_seen_ts"),
        right=True,
    ),
    Column("why not in the round", 0, True, lambda device, now: words.printable(device["why"]), _of("why")),
)
BY_NAME = {column.name: column for column in COLUMNS}
SORTS = ("state", "device", "round", "acc", "loss", "exp", "s", "°C", "up", "seen")
WIDE = 110


def columns_for(width: int) -> tuple[Column, ...]:
    """Return the columns for a terminal so wide."""
    return COLUMNS if width >= WIDE else tuple(column for column in COLUMNS if column.narrow)


def line(cells: Iterable[str], columns: Sequence[Column], width: int) -> str:
    """Return cells as one line of at most `width` characters."""
    fixed = [
        words.cut(cell, column.width).rjust(column.width)
        if column.right
        else words.cut(cell, column.width).ljust(column.width)
        for cell, column in zip(cells, columns, strict=True)
        if column.width
    ]
    last = [cell for cell, column in zip(cells, columns, strict=True) if not column.width]
    return words.cut(" ".join([*fixed, *last]), width)


def header(columns: Sequence[Column], width: int) -> str:
    """Return the line above the rows."""
    return line([column.name for column in columns], columns, width)


def row(device: Device, columns: Sequence[Column], width: int, now: float) -> str:
    """Return a device's line."""
    return line([column.text(device, now) for column in columns], columns, width)


def selected(devices: Sequence[Device], sort: str, reverse: bool, wanted: str) -> list[Device]:
    """Return the devices whose id, state or reason has all of the wanted words in it, sorted.

    Who lacks the figure comes last.

    sort: one of SORTS. Equal ones are in the order of their ids.
    """
    parts = wanted.lower().split()
    found = [
        each
        for each in devices
        if all(
            part in f"{each['id']} {_word(each, 0)} {each['state']} {each['why']}".lower() for part in parts
        )
    ]
    key = BY_NAME[sort].key
    having, lacking = (
        [each for each in found if (key(each) is None) is missing] for missing in (False, True)
    )
    return sorted(having, key=key, reverse=reverse) + lacking


def head(tree: Tree, width: int, limit: int = 0) -> list[str]:
    """Return the federation's lines: where it stands, its verdict, who is there, what the last round gave,
    bytes, clusters.

    limit: at most so many devices in the table of the verdict.
    """
    others = [_counts(tree["devices"]), _figures(tree, width), _traffic(tree, width), _clusters(tree)]
    reasons = [words.printable(tree["stopped_because"]), _missing_figures(tree)]
    reason = [line for each in reasons for line in textwrap.wrap(each, width)]
    lines = [_standing(tree, width), *reason, *_verdict(tree, width, limit), *filter(None, others)]
    return [words.cut(each, width) for each in lines]


def _standing(tree: Tree, width: int) -> str:
    name = tree["federation"]
    phase = tree["phase"]
    if not phase:
        return f"{name}: nothing heard from an aggregator yet"
    if phase in (JOINING, STOPPED, "done"):
        ended = {
            JOINING: _waiting(tree),
            STOPPED: "the aggregator has stopped",
            "done": f"done after {tree['rounds']} rounds",
        }
        return f"{name}: {ended[phase]}"
    sent = sum(each["state"] == "sent" for each in tree["devices"])
    took = max(0.0, tree["ts"] - (tree["round_started_ts"] or tree["ts"]))
    deadline_s = tree["deadline_s"] or 0.0
    place = phase if tree["round"] > tree["rounds"] else f"round {tree['round']} of {tree['rounds']}, {phase}"
    told = f"{name}: {place}, {sent} of {tree['cohort_size']} in, {took:.0f} of {deadline_s:.0f} s "
    share = sent / tree["cohort_size"] if tree["cohort_size"] else 0.0
    return told + words.bar(share, max(0, min(20, width - len(told))))


def _verdict(tree: Tree, width: int, limit: int) -> list[str]:
    """Return the verdict's table of at most `limit` devices, and its sentence."""
    if tree["verdict"] is None:
        return []
    verdict = from_dict(tree["verdict"])
    sentence = words.printable(verdict.sentence)
    return [*table(verdict, limit).splitlines(), *textwrap.wrap(sentence, width)]


def _missing_figures(tree: Tree) -> str:
    """Return why the figures that a reader expects are missing, empty where none are."""
    is_done = tree["phase"] == "done"
    if tree["differential_privacy"]:
        if is_done:
            return (
                "Differential privacy is on, so the aggregator publishes no figures and no verdict. `edgefl "
                "report` shows them, from the aggregator's folder."
            )
        return "Differential privacy is on, so the aggregator publishes no figures of rounds."
    verdict = tree["verdict"]
    if is_done and verdict is None:
        return "The broker has no verdict of this federation; `edgefl report` shows the aggregator's result."
    if verdict and verdict["devices"] and not verdict["rows"]:
        return "Updates are masked, so the verdict holds no figures of single devices."
    return ""


def _waiting(tree: Tree) -> str:
    needed = tree["needed"]
    ready = sum(each["state"] == "idle" for each in tree["devices"])
    if not needed or ready >= needed:
        return "waiting for devices"
    plural = "s" if needed > 1 else ""
    return f"waiting for {needed - ready} of {needed} device{plural}; start each with `edgefl device start`"


def _counts(devices: Sequence[Device]) -> str:
    if not devices:
        return "no device heard yet"
    count = Counter(_word(each, 0) for each in devices)
    words_of_it = [f"{count[word]} {word}" for word in (*WORDS[:4], "slow", *WORDS[4:]) if count[word]]
    return f"{len(devices)} device{'s' if len(devices) > 1 else ''}: {', '.join(words_of_it)}"


def _figures(tree: Tree, width: int) -> str:
    rows = tree["history"]
    told = [f"round {rows[-1]['round']}: loss {words.number(rows[-1]['loss'])}"] if rows else []
    last = next((each for each in reversed(rows) if each["accuracy_mean"] is not None), None)
    if last:
        spread = [last[f"accuracy_{name}"] for name in ("mean", "p10", "p90")]
    else:
        known = [each["accuracy"] for each in tree["devices"] if each["accuracy"] is not None]
        spread = (
            [sum(known) / len(known), words.percentile(known, 0.1), words.percentile(known, 0.9)]
            if known
            else []
        )
    if spread:
        mean, low, high = map(words.percent, spread)
        told.append(f"accuracy mean {mean}, p10 {low}, p90 {high}")
    line = ", ".join(told)
    # after the rounds, the accuracy is of other models on other samples
    curve = [each["accuracy_mean"] for each in rows if each["round"] <= tree["rounds"]]
    reported = [mean for mean in curve if mean is not None]
    return f"{line} {words.sparkline(reported, width - len(line) - 1)}" if len(reported) > 1 else line


def _traffic(tree: Tree, width: int) -> str:
    rows = tree["history"]
    if not rows:
        return ""
    up, down = (sum(each[key] for each in rows) for key in ("bytes_up", "bytes_down"))
    told = f"{words.size(up)} up, {words.size(down)} down in {len(rows)} rounds"
    losses = [each["loss"] for each in rows if each["loss"] is not None]
    return f"{told}, loss {words.sparkline(losses, min(40, width - len(told) - 7))}" if losses else told


def _clusters(tree: Tree) -> str:
    rounds = tree["clusters"]["rounds"]
    if not rounds:
        return ""
    count = Counter(rounds[-1]["assignment"].values())
    return f"clusters after round {rounds[-1]['round']}: " + ", ".join(
        f"{each} has {count[each]}" for each in sorted(count)
    )


def plain(tree: Tree, width: int, sort: str = "state", wanted: str = "") -> list[str]:
    """Return head and table as lines, for a pipe."""
    columns = columns_for(width)
    rows = [row(each, columns, width, tree["ts"]) for each in selected(tree["devices"], sort, False, wanted)]
    return [*head(tree, width, MAX_TABLE_ROWS), "", header(columns, width), *rows]
