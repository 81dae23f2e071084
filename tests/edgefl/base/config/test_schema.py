import json
from dataclasses import asdict
from pathlib import Path

import pytest

from edgefl.base.config import (
    AugmentationConfig,
    FederationConfig,
    ModelConfig,
    TrainingConfig,
    load_config,
    parse_config,
    restore_config,
)
from edgefl.base.config.toml import to_toml
from edgefl.base.errors import ConfigError

FULL_CONFIG = """
[federation]
name = "kitchen"
seed = 7
rounds = 3
deadline_s = 30
quorum = 0.75
[model]
name = "aem-cnn"
input_shape = [32, 32, 3]
num_classes = 20
filters = 128
[algorithm]
name = "pfl-mfe"
learning_rate = 0.1
[broker]
url = "mqtt://pi:1884"
"""


MORE_TABLES = """
[data]
name = "digits"
num_train = 100
classes = [0, 1]
[partition]
name = "dirichlet"
num_clients = 2
client_ids = ["pi-1", "kitchen"]
alpha = 0.5
[task]
kind = "anomaly"
anomalies = [3, 4]
[privacy]
clip = 1.0
noise_multiplier = 1.0
population = 20
[personalization]
epochs = 4
[fleet]
lost_per_day = 0.1
"""


@pytest.mark.parametrize(
    "text", ["", FULL_CONFIG, FULL_CONFIG.replace("num_classes = 20\n", "") + MORE_TABLES]
)
def test_a_recorded_configuration_is_restored(text: str) -> None:
    config = parse_config(text)
    recorded = json.loads(json.dumps(asdict(config)))
    assert restore_config(recorded) == config
    for name in ("broker", "data", "fleet", "rounds"):  # an aggregator or an older version leaves some out
        recorded.pop(name)
    restored = restore_config(recorded)
    assert (restored.rounds, restored.options, restored.model) == (10, config.options, config.model)
    with pytest.raises(ConfigError, match="unknown key 'newer'"):
        restore_config({**recorded, "newer": 1})


def test_every_table_is_read() -> None:
    config = parse_config(FULL_CONFIG)
    assert (config.name, config.seed, config.rounds, config.deadline_s, config.quorum) == (
        "kitchen",
        7,
        3,
        30.0,
        0.75,
    )
    assert isinstance(config.deadline_s, float)
    assert config.model == ModelConfig(
        name="aem-cnn", input_shape=(32, 32, 3), num_classes=20, options={"filters": 128}
    )
    assert (config.algorithm, config.options) == ("pfl-mfe", {"learning_rate": 0.1})
    assert config.broker == "mqtt://pi:1884"


def test_empty_file_gives_the_defaults() -> None:
    assert parse_config("") == FederationConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[federation]\nrouds = 3", "unknown key 'rouds'; did you mean 'rounds'"),
        ("[federatoin]\n", "unknown table \\[federatoin\\]; did you mean 'federation'"),
        ("rounds = 3", "unknown table \\[rounds\\]"),
        ("[federation]\nrounds = '3'", "rounds is '3', expected a whole number"),
        ("[federation]\nrounds = true", "rounds is True, expected a whole number"),
        ("[federation]\nrounds = 0", "rounds is 0, expected at least 1"),
        ("[federation]\nquorum = 0.0", "quorum is 0"),
        ("[federation]\nquorum = 1.5", "quorum is 1.5"),
        ("[federation]\ndeadline_s = nan", "deadline_s is nan"),
        ("[model]\nmean = [0.5]", "1 values in mean and 0 in std, expected as many"),
        ("[model]\nmean = [0.5, 0]\nstd = [1, 1]", "2 values in mean and in std, expected one or 1"),
        ("[model]\nmean = [0.5]\nstd = [0]", "std is \\[0\\], expected numbers of at least 1e-07"),
        ("[model]\nmean = [0.5]\nstd = [1e-8]", "std is \\[1e-08\\], expected numbers of at least 1e-07"),
        ("[model]\nmean = [0.5]\nstd = [1e-200]", "std is \\[1e-200\\], expected numbers of at least 1e-07"),
        ("[model]\nmean = [nan]\nstd = [1]", "mean is \\[nan\\], expected finite numbers"),
        (
            "[model]\nmean = [0]\nstd = [1e25]",
            "std is \\[1e\\+25\\], expected finite numbers .* at most 1e\\+15",
        ),
        ("[model]\nmean = 0.5\nstd = 0.5", "mean is 0.5, expected a list"),
        ("[federation]\nname = 'a/b'", "federation name 'a/b'"),
        ("[federation]\nname = 'Kitchen'", "a-z, 0-9, -, _ and ."),
        ("[federation]\nname = ''", "a-z, 0-9, -, _ and ."),
        ("[federation]\nbroker = 'x'", "unknown key 'broker'"),
        ("[broker]\nhost = 'x'", "expected url"),
        ("[broker]\nurl = 3", "expected text such as"),
        ("broker = 3", "broker is 3, expected a table; write \\[broker\\]"),
        ("[[augmentation]]\n", "augmentation is .*, expected a table"),
        ("[model]\nnum_classes = 'ten'", "expected a whole number"),
        ("[model]\ninput_shape = 28", "expected a list"),
        ("[model]\nnum_classes = 1", "num_classes is 1, expected at least 2"),
        ("[model]\ninput_shape = [28, 0]", "input_shape is \\[28, 0\\]"),
        ("[model]\ninput_shape = []", "input_shape is \\[\\]"),
        ("[model]\ninput_shape = [28, '1']", "expected whole numbers above 0"),
        ("[algorithm]\nname = 3", "name is 3, expected text"),
        ("[personalization]\nship = 'best'", "ship is 'best', expected one of 'auto', 'blend', 'one'"),
        ("[personalization]\nship = 'blend'\nselect = false", 'expected select = true: .* set ship = "auto"'),
        (
            "[personalization]\nship = 'blend'\n[task]\nkind = 'anomaly'\n[model]\nnum_classes = 784",
            'with kind = "anomaly" of \\[task\\], expected a classification or a regression; set ship',
        ),
        ("[federation", "not TOML"),
    ],
)
def test_config_errors_name_the_mistake(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(text)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", True),
        ("[federation]\nevaluate = true", True),
        ("[federation]\nevaluate = false", False),
        ("[privacy]\nsecure_aggregation = true", False),
        ("[privacy]\nclip = 1.0\nnoise_multiplier = 1.0\npopulation = 9", False),
        ("[federation]\nevaluate = true\n[privacy]\nsecure_aggregation = true", False),
    ],
)
def test_accuracy_is_reported_unless_disabled_or_updates_are_private(text: str, reported: bool) -> None:
    config = parse_config(text)
    assert config.reports_accuracy == reported
    assert config.task_settings == ({"evaluate": 1.0} if reported else {})


@pytest.mark.parametrize(
    "privacy", ["secure_aggregation = true", "clip = 1.0\nnoise_multiplier = 1.0\npopulation = 9"]
)
def test_private_federations_fix_mean_and_std(privacy: str) -> None:
    """Devices send mean and variance without noise or a mask."""
    text = f"[privacy]\n{privacy}\n[model]\nnormalize = true\n"
    with pytest.raises(ConfigError, match=r"normalize = true with \[privacy\], expected mean and std"):
        parse_config(text)
    assert parse_config(text + "mean = [0.5]\nstd = [0.25]\n").model.mean == (0.5,)


def test_anomaly_tasks_are_not_normalized() -> None:
    text = "[task]\nkind = 'anomaly'\n[model]\nname = 'autoencoder'\ninput_shape = [4]\nnormalize = true\n"
    with pytest.raises(ConfigError, match="normalize = true with an anomaly task, expected false"):
        parse_config(text)


def test_load_config_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[federation]\nrouds = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml: .*rouds"):
        load_config(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "bytes.toml")
    (tmp_path / "good.toml").write_text(FULL_CONFIG)
    assert load_config(tmp_path / "good.toml") == parse_config(FULL_CONFIG)


def test_augmentation_is_read_and_survives_toml() -> None:
    config = parse_config("[augmentation]\ncrop = 4\nflip = true\nrotate = 15\n")
    assert config.augmentation == AugmentationConfig(4, True, 15.0)
    assert parse_config(to_toml(config)) == config
    assert "[augmentation]" not in to_toml(FederationConfig())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crop = -1", r"\[augmentation\] crop is -1, expected a whole number of pixels of at least 0"),
        ("crop = 28", r"\[augmentation\] crop is 28, expected below 28"),
        ("rotate = 200", r"\[augmentation\] rotate is 200.0, expected degrees from 0 to 180"),
        ("flip = 1", r"\[augmentation\] flip is 1, expected true or false"),
        ("mirror = true", r"\[augmentation\] has an unknown key 'mirror'"),
        ("flip = true\n[model]\ninput_shape = [128, 3]", r"input_shape \[128, 3\], expected pictures"),
        ("flip = true\n[task]\nkind = 'anomaly'", r"kind = 'anomaly' of \[task\], expected a classification"),
    ],
)
def test_augmentation_that_cannot_work_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(f"[augmentation]\n{text}\n")


def test_micro_batch_is_read_and_survives_toml() -> None:
    config = parse_config("[training]\nmicro_batch = 8\n")
    assert config.training == TrainingConfig(micro_batch=8)
    assert parse_config(to_toml(config)) == config
    assert "[training]" not in to_toml(FederationConfig())


@pytest.mark.parametrize("value", ["-1", "2.5", "true", "'8'"])
def test_wrong_micro_batch_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"\[training\] micro_batch is .*, expected a"):
        parse_config(f"[training]\nmicro_batch = {value}")


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ('["pi-1"]', "client_ids has 1 different ids, expected num_clients, 2; add or remove ids"),
        ('["pi-1", "pi-1"]', "client_ids has 1 different ids"),
        ('["pi-1", "../x"]', r"client id '\.\./x': expected 1 to 64 of"),
        ('["pi-1", "cohort"]', "client id 'cohort' is reserved"),
        ('["pi-1", 2]', "expected ids such as 'pi-1'"),
        ('"pi-1"', "client_ids is 'pi-1', expected a list"),
    ],
)
def test_wrong_client_ids_are_refused(ids: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse_config(f"[partition]\nnum_clients = 2\nclient_ids = {ids}")
