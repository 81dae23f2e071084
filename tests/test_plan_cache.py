"""The cache of plans for tests returns what was built, and builds again when a configuration changes."""

from dataclasses import replace

import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.errors import ConfigError
from tests.support.plans import compute_key, make_cached_builder


def test_each_configuration_is_built_once_with_the_same_bits(tmp_path):
    from edgefl.learning.algorithms.plans import build_plan

    pytest.importorskip("tensorflow")
    built = []

    def build(config):
        built.append(build_plan(config))
        return built[-1]

    config = FederationConfig(
        algorithm="aem", model=ModelConfig(name="softmax", input_shape=(4,), num_classes=3)
    )
    for _ in range(2):  # in two processes
        builder = make_cached_builder(build, tmp_path)
        plan, initial = builder(config)
        assert plan == built[0][0]
        assert list(initial) == list(built[0][1])
        assert all(initial[name].tobytes() == array.tobytes() for name, array in built[0][1].items())
    assert len(built) == 1
    builder(replace(config, seed=2))
    assert len(built) == 2


def test_failed_build_is_repeated(tmp_path):
    def build(config):
        raise ConfigError("no model")

    builder = make_cached_builder(build, tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no model"):
            builder(FederationConfig())


def test_changed_model_file_has_another_key(tmp_path):
    path = tmp_path / "model.keras"
    config = FederationConfig(model=ModelConfig(name=str(path), input_shape=(4,), num_classes=3))
    keys = []
    for content in (b"one", b"two", b"one"):
        path.write_bytes(content)
        keys.append(compute_key(config))
    assert keys[0] == keys[2] != keys[1]
