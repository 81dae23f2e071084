"""The files of the papers' experiments: merging, errors, and that every stage of every file is valid."""

from dataclasses import replace

import pytest

from edgefl.base.errors import ConfigError
from edgefl.lab.reproduce import experiment as experiment_module
from edgefl.lab.reproduce.experiment import (
    PAPERS,
    digest_stages,
    find_experiment,
    load_experiments,
    make_stages,
    parse_experiment,
)

TOY = """
title = "a toy"
item = "table 0"
order = 1
[config]
federation = { rounds = 9 }
model = { name = "lenet5", padding = "valid" }
algorithm = { name = "aem", epochs = 2, local_options = { filters1 = 4 } }
[stage]
evaluate_every = 3
[stages.a]
[stages.b]
first_seed_only = true
scales = ["full"]
config.algorithm = { epochs = 5, local_options = { replace = true } }
[stages.c]
config.algorithm = { replace = true, name = "local" }
[scales.full]
seeds = 2
[scales.smoke]
config.federation = { rounds = 1 }
stages.c.config.federation = { rounds = 2 }
[rows]
"A" = { stage = "a", paper = 50 }
"B" = { stages = ["a", "c"], value = "experts_used" }
[claims."A is above B"]
row = "A"
than = "B"
at_least = 0
"""


def test_a_file_extends_a_file_that_extends_another():
    """The data are of the last file, the rows of the one before it, and the optimizer of the first."""
    last, before = (find_experiment("aem", table) for table in ("control-local-model", "control-gate-rate"))
    (stage, *_), (of_before, *_) = (make_stages(each, "reduced", 1) for each in (last, before))
    assert (stage.config.data.name, of_before.config.data.name) == ("cifar10", "fashion-mnist")
    assert last.rows[: len(before.rows)] == before.rows
    assert last.stages.keys() > before.stages.keys()
    assert stage.config.options["weight_decay"] == 0.0011


def test_a_model_file_replaces_every_model_and_all_first_weights(tmp_path):
    """Half of FedAP's table trains a MobileNetV2 of ten classes first, and all others start from it."""
    file = tmp_path / "own.keras"
    file.write_bytes(b"a model")
    experiment = replace(find_experiment("fedap", "table-1"), model_file=str(file))
    stages = {stage.name: stage for stage in make_stages(experiment, "half", 1)}
    assert {"fedavg", "local", "centralized"} <= stages.keys()
    assert "pretrained" not in stages
    assert {stage.weights_from for stage in stages.values()} == {""}
    models = [stage.config.model for stage in stages.values()]
    assert {(model.name, model.input_shape, model.num_classes) for model in models} == {
        (str(file), (64, 64, 3), 7)
    }
    assert {str(dict(model.options)) for model in models} == {"{}"}
    digest = digest_stages(experiment, "half", 1)
    file.write_bytes(b"another model")
    assert digest_stages(experiment, "half", 1) != digest


def test_files_that_extend_each_other_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment_module, "DIRECTORY", tmp_path)
    (tmp_path / "aem.a.toml").write_text('extends = "aem.b"')
    (tmp_path / "aem.b.toml").write_text('extends = "aem.a"')
    with pytest.raises(ConfigError, match=r"aem\.b extends aem\.a extends aem\.b, a circle; remove"):
        parse_experiment("aem.b", 'extends = "aem.a"')


def test_tables_are_merged_from_the_experiment_to_the_stage_of_a_scale():
    toy = parse_experiment("aem.toy", TOY)
    full = {stage.name: stage for stage in make_stages(toy, "full", 1)}
    assert list(full) == ["a", "b", "c"]
    assert {stage.config.rounds for stage in full.values()} == {9}
    assert full["a"].config.options == {"epochs": 2, "local_options": {"filters1": 4}}
    assert full["b"].config.options == {"epochs": 5, "local_options": {}}
    assert full["c"].config.options == {}
    assert full["c"].config.algorithm == "local"
    assert {stage.evaluate_every for stage in full.values()} == {3}
    smoke = {stage.name: stage.config.rounds for stage in make_stages(toy, "smoke", 1)}
    assert smoke == {"a": 1, "c": 2}
    assert [stage.name for stage in make_stages(toy, "full", 2)] == ["a", "c"]
    assert full["a"].config.model.options == {"padding": "valid"}
    assert full["a"].config.name == "aem"
    assert not full["a"].config.personalization.select


def test_rows_name_one_stage_or_several():
    toy = parse_experiment("aem.toy", TOY)
    assert [(row.name, row.stages, row.paper) for row in toy.rows] == [
        ("A", ("a",), 50),
        ("B", ("a", "c"), None),
    ]
    assert toy.rows[0].value == "figures.accuracy_mixture.mean"


def test_digest_changes_with_a_setting_and_with_the_scale_only():
    toy = parse_experiment("aem.toy", TOY)
    digest = digest_stages(toy, "full", 2)
    assert digest == digest_stages(
        parse_experiment("aem.toy", TOY.replace("a toy", "another title")), "full", 2
    )
    assert digest != digest_stages(
        parse_experiment("aem.toy", TOY.replace("rounds = 9", "rounds = 8")), "full", 2
    )
    assert digest != digest_stages(toy, "smoke", 2)


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        ("order = 1", "ordr = 1", ("'ordr'", "'order'")),
        ('item = "table 0"', "", ("item",)),
        ('stage = "a"', 'stage = "aa"', ("'aa'", "'a'")),
        ('than = "B"', 'than = "C"', ("'C'",)),
        ("stages.c.config", "stages.d.config", ("'d'", "smoke")),
        ("[scales.full]", "[scales.ful]", ("'ful'", "'full'")),
        ("first_seed_only", 'after = "z"\nfirst_seed_only', ("'z'", "stage before b")),
        ("[stages.a]", '[stages.a]\nweights_from = "z"', ("'z'", "stage before a")),
        ('scales = ["full"]', 'scales = ["ful"]', ("'ful'", "'full'")),
        ("at_least", "at_leas", ("'at_leas'", "'at_least'")),
        ("[stages.a]", "[stages.a", ("TOML",)),
        ("evaluate_every", "config.federation = { rounds = 3 }\nevaluate_every", ("[stage]", "[config]")),
        ("[stages.a]", '[stages.a]\nafter = "b"', ("'b'", "stage before a")),
        ('stage = "a", ', "", ("'A'", "no stage", "exactly")),
        ("at_least = 0", "", ("'A is above B'", "limit", "exactly")),
        ('row = "A"', "", ("'A is above B'", "limit", "exactly")),
    ],
)
def test_mistake_in_a_file_is_named(before, after, parts):
    with pytest.raises(ConfigError) as error:
        parse_experiment("aem.toy", TOY.replace(before, after, 1))
    assert "aem.toy" in str(error.value)
    for part in parts:
        assert part in str(error.value)


def test_mistake_in_a_stage_is_named_with_the_stage():
    toy = parse_experiment("aem.toy", TOY.replace("rounds = 9", "rouns = 9"))
    with pytest.raises(ConfigError, match=r"aem\.toy: stage a: .*'rouns'.*'rounds'"):
        make_stages(toy, "full", 1)
    toy = parse_experiment("aem.toy", TOY.replace("evaluate_every", "evaluate"))
    with pytest.raises(ConfigError, match=r"'evaluate'.*'evaluate_every'"):
        make_stages(toy, "full", 1)


def test_stage_that_starts_from_one_that_does_not_run_is_refused():
    """Stage b runs at full scale with seed 1 only."""
    toy = parse_experiment("aem.toy", TOY.replace("[stages.c]", '[stages.c]\nafter = "b"'))
    assert len(make_stages(toy, "full", 1)) == 3
    for scale, seed in (("full", 2), ("smoke", 1)):
        with pytest.raises(ConfigError, match=f"stage c starts from b.*--{scale} with seed {seed}; "):
            make_stages(toy, scale, seed)


def test_missing_scale_and_cost_are_errors():
    toy = parse_experiment("aem.toy", TOY)
    with pytest.raises(ConfigError, match="no scale --half, expected --smoke, --full"):
        make_stages(toy, "half", 1)
    costly = parse_experiment("aem.toy", 'out_of_reach = "172 core-hours"\n' + TOY)
    assert make_stages(costly, "full", 1) == make_stages(toy, "full", 1)
    with pytest.raises(ConfigError, match=r"no scale --half, expected --smoke, --full \(172 core-hours\)"):
        make_stages(costly, "half", 1)
    with pytest.raises(ConfigError, match="cannot run: 172 core-hours"):
        make_stages(replace(costly, scales={}), "full", 1)


CASES = [(experiment, scale) for experiment in load_experiments() for scale in experiment.scales]


@pytest.mark.parametrize(("experiment", "scale"), CASES, ids=[f"{e.name}-{s}" for e, s in CASES])
def test_every_stage_of_every_file_is_valid(experiment, scale):
    """Names of options exist."""
    from edgefl.base.options import complete_options
    from edgefl.data.partitions.registry import find_partition
    from edgefl.learning.algorithms import complete_algorithm_options
    from edgefl.program.models.zoo.catalog import check_model_options, list_models

    stages = make_stages(experiment, scale, 1)
    assert stages
    for stage in stages:
        config = stage.config
        complete_algorithm_options(config.algorithm, config.options)
        complete_options("", find_partition(config.partition.name).defaults, config.partition.options)
        if config.model.name in list_models():
            check_model_options(config.model.name, config.model.options)


@pytest.mark.parametrize("experiment", load_experiments(), ids=lambda experiment: experiment.name)
def test_every_file_has_claims_and_figures_of_the_paper(experiment):
    assert experiment.paper in PAPERS
    assert experiment.claims
    for claim in experiment.claims:
        assert claim.paper, claim.text
    for scale in ("half", "reduced", "smoke"):
        if scale in experiment.scales:
            assert experiment.scales[scale].differs, scale


def test_tables_are_named_by_their_beginning():
    main = find_experiment("clustered")
    assert main.table == "figure-6-2-tasks"
    assert find_experiment("clustered", "figure-6-3").table == "figure-6-3-tasks"
    with pytest.raises(ConfigError, match="figure-6-2-tasks, figure-6-3-tasks"):
        find_experiment("clustered", "figure-6")
    with pytest.raises(ConfigError, match=r"'table-9'.*figure-6-2-tasks"):
        find_experiment("clustered", "table-9")


def test_fedap_counts_the_clustering_round_beside_the_training_rounds():
    """There are 40 rounds before the clustering round, and 260 after it."""
    for stage in make_stages(find_experiment("fedap", "table-1"), "reduced", 1):
        if stage.config.algorithm == "fedap":
            options = stage.config.options
            assert stage.config.rounds == 300 + options["clustering"]
            assert options["decay_rounds"] == (260 if options["clustering"] else 300)


def test_tables_outside_of_config_may_have_the_marker_replace():
    marked = TOY.replace("[stages.a]", "[stages.a]\nreplace = true").replace(
        "[scales.full]", "[scales]\nreplace = true\n[scales.full]\nreplace = true"
    )
    toy = parse_experiment("aem.toy", marked)
    assert digest_stages(toy, "full", 1) == digest_stages(parse_experiment("aem.toy", TOY), "full", 1)


@pytest.mark.parametrize("paper", PAPERS)
def test_main_experiment_of_a_paper_runs_at_the_default_scale(paper):
    assert make_stages(find_experiment(paper), "reduced", 1)
