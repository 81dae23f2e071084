"""Reads the experiments of the papers, one TOML file for each table or figure.

A file `papers/PAPER.TABLE.toml` has these parts:

- `title`, `item` (the tables and figures of the paper), and `order` (position in the queue of `--next`).
- `extends`, optional: another file, such as `clustered.figure-6-2-tasks`. This file overrides its tables. The
  other file can extend a third one.
- `out_of_reach`, optional: why no seed is planned, with the cost. If there are scales, it can run elsewhere.
- `[config]`: the tables of a federation, as in federation.toml.
- `[stages.NAME]`: one federation each. It has keys of `ExperimentStage`, and in `config` the tables that
  differ. `scales` lists the scales at which it runs, and `first_seed_only` leaves further seeds out.
  `[stage]` has keys of all stages.
- `[scales.SCALE]`: how the size differs from the paper (`differs`), `seeds` and `core_hours` per seed.
  `config` in it overrides `[config]`, and `stages` overrides `[stages]`.
- `[rows]`: figures to read from the results of the stages by the name of the row, see `Row`.
- `[claims]`: what the paper claims about the rows, see `PaperClaim`.

A table that overrides another one keeps its further keys, unless it has `replace = true`.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from edgefl.base.config import FederationConfig, read_tables
from edgefl.base.errors import ConfigError
from edgefl.base.options import suggest_nearest
from edgefl.lab.reproduce.stage import ExperimentStage, list_default_options

PAPERS: Mapping[str, str] = {
    "clustered": "Filippakopoulos et al.: clusters by the cosine similarity of dense layers",
    "fedmix": "Reisser et al., 2021: federated mixture of experts",
    "pfl-moe": "Guo et al., 2020: the global model and a personal classifier under a gate",
    "aem": "Isaksson et al., 2022: adaptive expert models",
    "fedap": "Yeganeh et al., 2022: adaptive personalization in clusters",
}
"""The papers by the name of their experiments."""

ExperimentScale = Literal["smoke", "reduced", "half", "full"]
"""The size of an experiment.

- smoke: a minute or two, to check that everything runs.
- reduced: minutes, often with other data than the paper's.
- half: the paper's set-up with fewer rounds or epochs.
- full: the sizes of the paper.
"""
DIRECTORY = Path(__file__).parent / "papers"
EXPERIMENT_SCALES: tuple[ExperimentScale, ...] = ("smoke", "reduced", "half", "full")
MODEL_SHAPE = ("input_shape", "num_classes", "mean", "std")
"""Keys of `[model]` that depend on the data, and not on the model."""
PAPER_PERSONALIZATION: Mapping[str, Any] = {"select": False, "validation_share": 0.0, "baseline": False}
"""A client trains on all of its samples and ships the algorithm's mixture, as in the papers."""


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: name of the row.
        stages: the stages to read. Several stages give the mean of their figures.
        value: path of the figure in the result of a stage, or the name of a function of
            `edgefl.lab.reproduce.measures`, or `round_accuracy.` and the number of an evaluated round. Shares
            become per cent.
        paper: the figure of the paper. None if the paper has no number.
    """

    name: str
    stages: tuple[str, ...]
    value: str = "figures.accuracy_mixture.mean"
    paper: float | None = None

    @property
    def source(self) -> str:
        """Where the figure comes from, such as `fedavg: figures.accuracy_mixture.mean`."""
        return f"{' + '.join(self.stages)}: {self.value}"


@dataclass(frozen=True)
class PaperClaim:
    """A claim of the paper, with the check that decides about it.

    The check is written before the experiment runs, unless `added_later` says otherwise.

    The check is about `row`, or about the difference `row` - `than` of one seed. A row must be at least
    `at_least`, at most `at_most`, or both. A difference must be above or below them: two equal rows are not
    different.

    Attributes:
        text: the claim in words.
        row: name of a row. Empty for an experiment that cannot run here.
        than: name of the row to compare with. Empty compares with nothing.
        at_least: lower limit. None: no limit.
        at_most: upper limit. None: no limit.
        paper: what the paper measured for it, as text.
        added_later: whether the check was written when results of this experiment were known.
    """

    text: str
    row: str = ""
    than: str = ""
    at_least: float | None = None
    at_most: float | None = None
    paper: str = ""
    added_later: bool = False


@dataclass(frozen=True)
class ScaleSettings:
    """The size of an experiment at one scale.

    Attributes:
        seeds: number of seeds that are planned. 0 plans no run.
        core_hours: expected processor time of a seed in hours.
        differs: how the set-up differs from the paper's. Empty means not at all.
        config: tables that override the tables of the experiment.
        stages: overrides of `[stages]` by stage.
    """

    seeds: int = 0
    core_hours: float = 0.0
    differs: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper. The module describes the file.

    Attributes:
        paper: a key of `PAPERS`.
        table: name of the table or figure, such as `figure-6`.
        title: what the experiment shows.
        item: the tables and figures of the paper.
        order: position in the queue. The first experiment of a paper is its main one.
        out_of_reach: why no seed is planned, with the cost. Empty if seeds are planned. With `scales`, it can
            run on a machine that has the time.
        config: the tables of a federation.
        stage: keys of all stages.
        stages: keys of `ExperimentStage` and `config` by stage.
        scales: settings by scale.
        rows: the rows of the table.
        claims: the claims of the paper.
        model_file: a `.keras` file whose model and weights replace the federated model of each stage. Empty:
            the models of the stages.
    """

    paper: str
    table: str
    title: str
    item: str
    order: int
    out_of_reach: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    stage: Mapping[str, Any] = field(default_factory=dict)
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scales: Mapping[str, ScaleSettings] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    claims: tuple[PaperClaim, ...] = ()
    model_file: str = ""

    @property
    def name(self) -> str:
        """Paper and table, such as `clustered.figure-6`."""
        return f"{self.paper}.{self.table}"

    @property
    def scale_names(self) -> tuple[str, ...]:
        """The scales, from the largest."""
        return tuple(scale for scale in reversed(EXPERIMENT_SCALES) if scale in self.scales)

    @property
    def planned_scales(self) -> tuple[str, ...]:
        """The scales with planned seeds, from the largest."""
        return tuple(scale for scale in self.scale_names if self.scales[scale].seeds)

    def format_command(self, scale: str) -> str:
        """Return the command that runs a scale."""
        return f"edgefl reproduce {self.paper} --table {self.table} --{scale}"

    def find_scale(self, scale: str) -> ScaleSettings:
        """Return the settings of a scale.

        Raises:
            ConfigError: the experiment cannot run, or not at this scale.
        """
        if self.out_of_reach and not self.scales:
            raise ConfigError(f"{self.name} cannot run: {self.out_of_reach}")
        if scale not in self.scales:
            choices = ", ".join(f"--{name}" for name in reversed(self.scale_names))
            cost = f" ({self.out_of_reach})" if self.out_of_reach else ""
            raise ConfigError(f"{self.name} has no scale --{scale}, expected {choices}{cost}")
        return self.scales[scale]


def _merge(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables merged into one.

    Later values win. A table with `replace = true` replaces the whole table, and keeps this key.
    """
    merged: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            before = merged.get(key)
            if isinstance(before, Mapping) and isinstance(value, Mapping) and not value.get("replace"):
                value = _merge(before, value)
            merged[key] = value
    return merged


def _drop_markers(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables without the key `replace`."""
    return {
        key: _drop_markers(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if key != "replace"
    }


def _merge_stages(experiment: Experiment, scale: str, seed: int) -> dict[str, dict[str, Any]]:
    """Return the merged tables of each stage that runs with a seed."""
    settings = experiment.find_scale(scale)
    base = {"federation": {"name": experiment.paper}, "personalization": PAPER_PERSONALIZATION}
    stages = {}
    for name, stage in experiment.stages.items():
        keys = {**experiment.stage, **stage, **settings.stages.get(name, {})}
        is_left_out = keys.pop("first_seed_only", False) and seed > 1
        if scale not in keys.pop("scales", EXPERIMENT_SCALES) or is_left_out:
            continue
        config = _merge(
            base,
            experiment.config,
            settings.config,
            stage.get("config", {}),
            settings.stages.get(name, {}).get("config", {}),
        )
        stages[name] = {**keys, "config": _drop_markers(config)}
    return _replace_models(experiment, stages) if experiment.model_file else stages


def _replace_models(
    experiment: Experiment, stages: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the stages with the model of the file, but no stage that only trains weights for others."""
    digest = hashlib.sha256(Path(experiment.model_file).read_bytes()).hexdigest()
    in_rows = {stage for row in experiment.rows for stage in row.stages}
    trained = {table.get("weights_from", "") for table in stages.values()} - in_rows
    replaced = {}
    for name, table in stages.items():
        if name not in trained:
            config = table["config"]
            shape = {key: value for key, value in config["model"].items() if key in MODEL_SHAPE}
            model = {"name": experiment.model_file, **shape}
            first = {"weights_from": "", "model_sha256": digest}
            replaced[name] = {**table, **first, "config": {**config, "model": model}}
    return replaced


def make_stages(experiment: Experiment, scale: str, seed: int) -> tuple[ExperimentStage, ...]:
    """Return the stages of an experiment.

    Args:
        seed: random seed of all federations, from 1.

    Raises:
        ConfigError: the experiment has no such scale, or a table of the file is invalid. A stage starts from
            one that does not run at this scale or with this seed.
    """
    stages: list[ExperimentStage] = []
    for name, table in _merge_stages(experiment, scale, seed).items():
        starts = {table[key] for key in ("after", "weights_from") if table.get(key)}
        if missing := sorted(starts - {stage.name for stage in stages}):
            raise ConfigError(
                f"{experiment.name}: stage {name} starts from {missing[0]}, which does not run at --{scale} "
                f"with seed {seed}; give both stages the same scales and seeds"
            )
        config = _read_config(experiment, name, table["config"], seed)
        context = f"{experiment.name}: stage {name}"
        stages.append(_build(ExperimentStage, context, **{**table, "name": name, "config": config}))
    return tuple(stages)


def _read_config(
    experiment: Experiment, stage: str, tables: Mapping[str, Any], seed: int
) -> FederationConfig:
    federation = {**tables.get("federation", {}), "seed": seed}
    try:
        return read_tables({**tables, "federation": federation})
    except ConfigError as error:
        raise ConfigError(f"{experiment.name}: stage {stage}: {error}") from error


def digest_stages(experiment: Experiment, scale: str, seed: int) -> str:
    """Return a digest of the stages' settings in the file. A result with another digest is out of date.

    Options that the file leaves to the defaults of an algorithm are not in it, see `list_defaults`.
    """
    text = json.dumps(_merge_stages(experiment, scale, seed), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def list_sources(experiment: Experiment, scale: str, seed: int) -> dict[str, str]:
    """Return where the figures come from by row, see `Row.source`.

    Rows whose stages do not run are left out.
    """
    stages = _merge_stages(experiment, scale, seed)
    return {row.name: row.source for row in experiment.rows if all(stage in stages for stage in row.stages)}


def list_defaults(experiment: Experiment, scale: str, seed: int) -> dict[str, Any]:
    """Return the options of algorithms that the file leaves to their defaults, by `STAGE.OPTION`.

    Raises:
        ConfigError: the experiment has no such scale, or a table of the file is invalid.
    """
    return {
        f"{stage.name}.{option}": value
        for stage in make_stages(experiment, scale, seed)
        for option, value in list_default_options(stage.config).items()
    }


def _build(kind: Any, context: str, **values: Any) -> Any:
    """Build a dataclass from a table of a file, with lists as tuples."""
    names = [f.name for f in fields(kind)]
    for key in values:
        if key not in names:
            raise ConfigError(f"{context} has an unknown key {key!r}; {suggest_nearest(key, names)}")
    try:
        return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})
    except TypeError as error:
        raise ConfigError(f"{context} is incomplete: {error}") from error


def parse_experiment(name: str, text: str) -> Experiment:
    """Parse the file of an experiment.

    Args:
        name: paper and table, such as `clustered.figure-6`.
        text: the content of the file.

    Raises:
        ConfigError: the text is not TOML, or a key is unknown or missing. A row or claim refers to a stage or
            row that does not exist. A row has no stage, or a claim no limit. A stage starts from a later one.
    """
    raw = _read_toml(name, text)
    extended = [name]
    while base := raw.pop("extends", ""):
        if base in extended:
            raise ConfigError(f"{' extends '.join([*extended, base])}, a circle; remove one extends")
        extended.append(base)
        raw = _merge(_read_toml(base, _read_file(base)), raw)
    for part in ("stages", "scales", "stage"):
        table = raw.get(part, {})
        for owner in (table, *(value for value in table.values() if isinstance(value, dict))):
            owner.pop("replace", None)
    paper, _, table_name = name.partition(".")
    rows = tuple(_parse_row(name, row, values) for row, values in _drop_markers(raw.pop("rows", {})).items())
    claims = tuple(
        _build(PaperClaim, f"{name}: claim {text!r}", text=text, **claim)
        for text, claim in _drop_markers(raw.pop("claims", {})).items()
    )
    scales = {
        scale: _build(ScaleSettings, f"{name}: [scales.{scale}]", **settings)
        for scale, settings in raw.pop("scales", {}).items()
    }
    experiment: Experiment = _build(
        Experiment, name, paper=paper, table=table_name, scales=scales, rows=rows, claims=claims, **raw
    )
    if "config" in experiment.stage:
        raise ConfigError(
            f"{name}: [stage] has config, expected it in [config], for all stages; move it there"
        )
    _check_rows_and_claims(experiment)
    _check_names(f"{name}: stage", {s for row in rows for s in row.stages}, experiment.stages)
    row_names = {row.name: row for row in rows}
    _check_names(f"{name}: row", {r for c in claims for r in (c.row, c.than) if r}, row_names)
    _check_names(f"{name}: scale", set(scales), dict.fromkeys(EXPERIMENT_SCALES))
    for scale, settings in scales.items():
        _check_names(f"{name}: stage of [scales.{scale}]", set(settings.stages), experiment.stages)
    stages_before: dict[str, Any] = {}
    for stage, table in experiment.stages.items():
        overrides = [settings.stages.get(stage, {}) for settings in scales.values()]
        earlier = {t[key] for t in (table, *overrides) for key in ("after", "weights_from") if key in t}
        _check_names(f"{name}: stage before {stage}", earlier, stages_before)
        stages_before[stage] = table
        _check_names(
            f"{name}: scale of {stage}", set(table.get("scales", ())), dict.fromkeys(EXPERIMENT_SCALES)
        )
    return experiment


def _check_rows_and_claims(experiment: Experiment) -> None:
    """Raise ConfigError for a row without a stage, and for a claim that no check could refute."""
    for row in experiment.rows:
        if not row.stages:
            raise ConfigError(
                f"{experiment.name}: row {row.name!r} has no stage, expected stage or stages; "
                "a file with extends must repeat the name of the row exactly"
            )
    for claim in experiment.claims:
        has_limit = claim.at_least is not None or claim.at_most is not None
        if not experiment.out_of_reach and not (claim.row and has_limit):
            raise ConfigError(
                f"{experiment.name}: claim {claim.text!r} lacks a row or a limit, expected row and at_least "
                "or at_most; a file with extends must repeat the text of the claim exactly"
            )


def _read_toml(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}; fix that line") from error


def _read_file(name: str) -> str:
    path = DIRECTORY / f"{name}.toml"
    if not path.exists():
        raise ConfigError(
            f"extends is {name!r}, which does not exist; "
            + suggest_nearest(name, sorted(file.stem for file in DIRECTORY.glob("*.toml")))
        )
    return path.read_text()


def _parse_row(experiment: str, name: str, table: Mapping[str, Any]) -> Row:
    stages = table.get("stages", [table["stage"]] if "stage" in table else [])
    values = {key: value for key, value in table.items() if key != "stage"}
    row: Row = _build(Row, f"{experiment}: row {name!r}", **values | {"name": name, "stages": stages})
    return row


def _check_names(context: str, names: set[str], existing: Mapping[str, Any]) -> None:
    for name in sorted(names - set(existing)):
        raise ConfigError(f"{context} {name!r} does not exist; {suggest_nearest(name, list(existing))}")


def load_experiments() -> tuple[Experiment, ...]:
    """Return all experiments of the papers in the order of the queue.

    Raises:
        ConfigError: a file is invalid.
    """
    files = DIRECTORY.glob("*.toml")
    experiments = [parse_experiment(file.stem, file.read_text()) for file in files]
    return tuple(sorted(experiments, key=lambda experiment: (experiment.order, experiment.name)))


def select_experiments(paper: str | None, table: str = "") -> list[Experiment]:
    """Return the experiments of a paper with this table, or else those whose table begins so.

    Args:
        paper: a key of `PAPERS`. None: all papers.
        table: name of the table, or its beginning. Empty selects all.

    Raises:
        ConfigError: there is no such table.
    """
    experiments = [experiment for experiment in load_experiments() if paper in (None, experiment.paper)]
    matching = [experiment for experiment in experiments if experiment.table.startswith(table)]
    if not matching:
        choices = ", ".join(experiment.table for experiment in experiments)
        raise ConfigError(f"--table is {table!r}, expected one of {choices}")
    return [experiment for experiment in matching if experiment.table == table] or matching


def find_experiment(paper: str, table: str = "") -> Experiment:
    """Return an experiment of a paper.

    Args:
        paper: a key of `PAPERS`.
        table: name of the table, or its beginning. Empty selects the main experiment.

    Raises:
        ConfigError: there is no such table, or several begin so.
    """
    matching = select_experiments(paper, table)
    if len(matching) > 1 and table:
        choices = ", ".join(experiment.table for experiment in matching)
        raise ConfigError(f"--table is {table!r}, expected one of {choices}")
    return matching[0]
