"""`federation.toml`: its schema, its reader and its commented template."""

from edgefl.base.config.schema import (
    DEFAULT_BROKER,
    MIXTURE_ONLY,
    AugmentationConfig,
    DataConfig,
    FederationConfig,
    FleetConfig,
    ModelConfig,
    PartitionConfig,
    PersonalizationConfig,
    PrivacyConfig,
    TrainingConfig,
    load_config,
    parse_config,
    parse_shape,
    read_tables,
    restore_config,
    with_simulated_clients,
)
from edgefl.base.tasks.samples import SamplesConfig

__all__ = [
    "DEFAULT_BROKER",
    "MIXTURE_ONLY",
    "AugmentationConfig",
    "DataConfig",
    "FederationConfig",
    "FleetConfig",
    "ModelConfig",
    "PartitionConfig",
    "PersonalizationConfig",
    "PrivacyConfig",
    "SamplesConfig",
    "TrainingConfig",
    "load_config",
    "parse_config",
    "parse_shape",
    "read_tables",
    "restore_config",
    "with_simulated_clients",
]
