"""Values that a search may choose, and its validation samples: worked cases and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import (
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PrivacyConfig,
    parse_config,
)
from edgefl.base.config.toml import to_toml
from edgefl.base.errors import ConfigError, DataError
from edgefl.data.dataset import Dataset
from edgefl.data.partitions.client_partition import ClientPartition, copy_shard
from edgefl.lab.tune.space import (
    Choice,
    NumberRange,
    draw_points,
    make_cluster_space,
    make_exploration_space,
    make_gate_space,
    make_local_space,
    with_options,
)
from edgefl.lab.tune.stages import TUNE_STAGES, configure_experts, parse_stages
from edgefl.lab.tune.trial import list_report_steps
from edgefl.lab.tune.validation import hold_back, make_iid_partition, make_validation_shards

AEM = FederationConfig(
    algorithm="aem",
    model=ModelConfig(name="aem-cnn"),
    options={"num_experts": 6, "learning_rate": 0.02, "epochs": 1},
)


def test_picked_values_match_hand_calculation():
    assert [NumberRange(1e-4, 1e-2, log=True).pick(place) for place in (0, 0.5, 0.75)] == [
        1e-4,
        1e-3,
        0.00316,
    ]
    assert [NumberRange(0.0, 0.9).pick(place) for place in (0, 0.5)] == [0.0, 0.45]
    assert [Choice((8, 16, 32)).pick(place) for place in (0, 0.34, 0.99)] == [8, 16, 32]


@given(count=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_each_interval_of_a_range_is_drawn_once(count, seed):
    space = {"a": Choice(tuple(range(count))), "b": Choice(tuple(range(count)))}
    points = draw_points(space, count, np.random.default_rng(seed))
    assert [sorted(point[name] for point in points) for name in "ab"] == [list(range(count))] * 2
    assert points == draw_points(space, count, np.random.default_rng(seed))


def test_options_are_set_in_their_configuration_tables():
    config = with_options(
        AEM, {"epochs": 3, "model.hidden": 64, "local_options.hidden": 32, "local_options.dropout": 0.5}
    )
    assert config.options == {
        "num_experts": 6,
        "learning_rate": 0.02,
        "epochs": 3,
        "local_options": {"hidden": 32, "dropout": 0.5},
    }
    assert config.model.options == {"hidden": 64}
    assert AEM.options["epochs"] == 1
    assert AEM.model.options == {}


def test_layer_sizes_are_searched_only_for_the_paper_network():
    plain = FederationConfig(algorithm="aem", model=ModelConfig(name="lenet5"))
    assert set(make_cluster_space(plain)) == {"learning_rate", "weight_decay", "epochs"}
    assert set(make_cluster_space(AEM)) - set(make_cluster_space(plain)) == {
        f"model.{n}" for n in ("filters1", "filters2", "hidden", "dropout")
    }
    assert set(make_local_space(AEM)) == {"local_learning_rate", "local_weight_decay"}
    both = with_options(AEM, {"local_model": "aem-cnn", "gate": "cnn"})
    assert {"local_options.filters2", "local_options.dropout"} < set(make_local_space(both))
    assert {"gate_options.filters2", "gate_options.dropout"} < set(make_gate_space(both))
    assert set(make_exploration_space(both)) == {"epsilon"}


def test_search_ranges_contain_the_values_of_the_paper():
    """Table 1 of the paper, and its epsilon of .33."""
    spaces = {
        **make_cluster_space(AEM),
        **make_local_space(AEM),
        **make_gate_space(AEM),
        **make_exploration_space(AEM),
    }
    table = {
        "learning_rate": 5.86e-3,
        "weight_decay": 1.10e-3,
        "local_learning_rate": 2.69e-4,
        "local_weight_decay": 9.89e-3,
        "gate_learning_rate": 3e-6,
        "gate_weight_decay": 6.88e-4,
        "epsilon": 0.33,
    }
    assert all(spaces[name].low <= value <= spaces[name].high for name, value in table.items())
    both = with_options(AEM, {"local_model": "aem-cnn", "gate": "cnn"})
    sizes = {**make_cluster_space(both), **make_local_space(both), **make_gate_space(both)}
    for table, filters1, filters2, hidden in (
        ("model", 128, 32, 1024),
        ("local_options", 32, 256, 256),
        ("gate_options", 12, 12, 8),
    ):
        for name, value in (("filters1", filters1), ("filters2", filters2), ("hidden", hidden)):
            assert value in sizes[f"{table}.{name}"].values


def test_stages_configure_algorithm_and_options():
    cluster, local, gate, exploration = (stage.configure(AEM) for stage in TUNE_STAGES)
    assert (cluster.algorithm, cluster.options) == (
        "ifca",
        {"num_experts": 1, "learning_rate": 0.02, "epochs": 1},
    )
    assert [each.options["num_experts"] for each in (local, gate, exploration)] == [1, 6, 2]
    assert all(
        each.algorithm == "aem" and each.options["learning_rate"] == 0.02
        for each in (local, gate, exploration)
    )
    assert configure_experts(AEM).options["num_experts"] == 6


def test_stages_are_selected_by_number():
    assert [stage.name for stage in parse_stages("all")] == ["cluster", "local", "gate", "exploration"]
    assert [stage.name for stage in parse_stages("3, 1")] == ["cluster", "gate"]
    for text in ("", "5", "gate", "1,,2"):
        with pytest.raises(
            ConfigError, match=r"expected all, or numbers such as 1,2; choose from 1 \(cluster\)"
        ):
            parse_stages(text)


def test_report_steps_match_hand_worked_cases():
    assert [list_report_steps(steps) for steps in (1, 2, 3, 9, 10, 100)] == [
        (1,),
        (1, 2),
        (1, 3),
        (1, 3, 9),
        (1, 3, 9, 10),
        (11, 33, 99, 100),
    ]


def test_search_partition_is_iid():
    assert make_iid_partition(
        PartitionConfig(name="dirichlet", num_clients=8, options={"alpha": 0.1}), 10
    ) == PartitionConfig(name="iid", num_clients=8)
    majority = PartitionConfig(name="p-majority", num_clients=8, options={"p": 1.0, "samples": 50})
    assert make_iid_partition(majority, 10) == PartitionConfig(
        name="p-majority", num_clients=8, options={"p": 0.2, "samples": 50}
    )


@given(held_out=st.lists(st.booleans(), min_size=1, max_size=60))
def test_held_out_samples_are_split_from_training_samples_without_loss(held_out):
    samples = np.arange(100, 100 + len(held_out))
    turns = samples % 7
    split = hold_back(
        ClientPartition(train=samples, test=np.array([3]), turns_train=turns, turns_test=np.array([1])),
        np.array(held_out),
    )
    assert split.test.tolist() == samples[held_out].tolist()
    assert sorted([*split.train, *split.test]) == samples.tolist()
    assert (split.turns_train == split.train % 7).all()
    assert (split.turns_test == split.test % 7).all()


@given(count=st.integers(2, 60), share=st.floats(0.05, 0.9), seed=st.integers(0, 100))
def test_each_client_has_samples_to_train_and_to_measure_on(count, share, seed):
    x = np.arange(count, dtype=np.float32)[:, None]
    zeros = np.zeros(count, np.int64)
    shards = make_validation_shards(
        Dataset(x_train=x, y_train=zeros, x_test=x[:1], y_test=zeros[:1], num_classes=2),
        {"a": ClientPartition(train=np.arange(count), test=zeros[:1])},
        seed,
        share,
    )
    assert len(shards["a"].x_test) == min(max(1, round(share * count)), count - 1)
    assert sorted([*shards["a"].x_train.ravel(), *shards["a"].x_test.ravel()]) == x.ravel().tolist()


def test_no_client_trains_on_a_recording_that_another_one_measures_on():
    """Rows 0 to 11 belong to three recordings, and each client has rows of all three."""
    x = np.arange(12, dtype=np.float32)[:, None]
    recordings = np.arange(12) // 4
    zeros = np.zeros(12, np.int64)
    dataset = Dataset(
        x_train=x, y_train=zeros, x_test=x[:1], y_test=zeros[:1], num_classes=2, recording_train=recordings
    )
    rows = {"a": np.array([0, 1, 4, 8, 9]), "b": np.array([2, 3, 5, 6, 7, 10, 11])}
    shards = make_validation_shards(
        dataset,
        {name: ClientPartition(train=item, test=np.array([0])) for name, item in rows.items()},
        seed=1,
    )
    trained, measured = (
        {int(row) // 4 for name in rows for row in getattr(shards[name], part).ravel()}
        for part in ("x_train", "x_test")
    )
    assert len(measured) == 1 and trained == {0, 1, 2} - measured
    for name, item in rows.items():
        assert len(shards[name].x_train) + len(shards[name].x_test) == len(item)


def test_client_without_a_shared_held_out_recording_divides_its_own():
    """Two of eight recordings are held out. Each client has two recordings, so some have no held-out one."""
    x = np.arange(24, dtype=np.float32)[:, None]
    recordings = np.arange(24) // 3
    zeros = np.zeros(24, np.int64)
    dataset = Dataset(
        x_train=x, y_train=zeros, x_test=x[:1], y_test=zeros[:1], num_classes=2, recording_train=recordings
    )
    rows = {str(i): np.arange(6 * i, 6 * i + 6) for i in range(4)}
    shards = make_validation_shards(
        dataset, {name: ClientPartition(train=item, test=zeros[:1]) for name, item in rows.items()}, seed=1
    )
    for name in rows:
        assert len(shards[name].x_train) == len(shards[name].x_test) == 3
        assert len({int(row) // 3 for row in shards[name].x_test.ravel()}) == 1
    with pytest.raises(DataError, match="c has samples of 1 recordings, expected 2 or more"):
        make_validation_shards(dataset, {"c": ClientPartition(train=np.arange(3), test=zeros[:1])}, seed=1)


def test_search_reads_no_test_samples():
    """Training samples are 1 to 8, test samples are NaN."""
    x = np.arange(1, 9, dtype=np.float32)[:, None]
    dataset = Dataset(
        x_train=x,
        y_train=np.arange(8) % 2,
        x_test=np.full((4, 1), np.nan, np.float32),
        y_test=np.zeros(4, np.int64),
        num_classes=2,
    )
    shards = make_validation_shards(
        dataset, {"a": ClientPartition(train=np.array([0, 1, 2, 6]), test=np.array([0, 3]))}, seed=1
    )
    assert sorted(np.concatenate([shards["a"].x_train, shards["a"].x_test]).ravel()) == [1, 2, 3, 7]
    assert len(shards["a"].x_test) == 1
    assert (shards["a"].y_test == (shards["a"].x_test.ravel() - 1) % 2).all()
    assert np.isnan(
        copy_shard(dataset, ClientPartition(train=np.array([0]), test=np.array([0, 3]))).x_test
    ).all()
    with pytest.raises(DataError, match="b has 1 samples, expected 2 or more"):
        make_validation_shards(
            dataset, {"b": ClientPartition(train=np.array([0]), test=np.array([0]))}, seed=1
        )


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUE = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RESERVED_KEYS = {"name", "num_train", "num_test", "num_clients", "input_shape", "num_classes"}
OPTIONS = st.dictionaries(TEXT.filter(lambda key: key not in RESERVED_KEYS), VALUE, max_size=4)


@given(
    rounds=st.integers(1, 1000),
    quorum=st.floats(0.01, 1),
    model=OPTIONS,
    data=OPTIONS,
    partition=OPTIONS,
    options=OPTIONS,
)
def test_configuration_round_trips_through_toml(rounds, quorum, model, data, partition, options):
    config = FederationConfig(
        rounds=rounds,
        quorum=quorum,
        algorithm="aem",
        options=options,
        broker="mqtts://host:8883",
        model=ModelConfig(name="lenet5", input_shape=(28, 28, 1), num_classes=10, options=model),
        data=DataConfig(name="digits", num_train=5, num_test=0, options=data),
        partition=PartitionConfig(name="iid", num_clients=3, options=partition),
        privacy=PrivacyConfig(clip=1.0, noise_multiplier=0.7, population=10, delta=1e-3),
    )
    assert parse_config(to_toml(config)) == config


def test_option_without_toml_representation_is_refused():
    with pytest.raises(ConfigError, match="None is a NoneType, expected text, a number"):
        to_toml(FederationConfig(options={"x": None}))
