"""`federation.toml`: its schema, its reader and its commented template."""

from edgefl.config.schema import (
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
    load_config,
    parse_config,
    parse_shape,
    read_tables,
    suggest_nearest,
    with_simulated_clients,
)

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
    "load_config",
    "parse_config",
    "parse_shape",
    "read_tables",
    "suggest_nearest",
    "with_simulated_clients",
]
