"""`federation.toml`: its schema, its reader and its commented template."""

from edgefl.config.schema import (
    DEFAULT_BROKER,
    MIXTURE_ONLY,
    DataConfig,
    FederationConfig,
    FleetConfig,
    ModelConfig,
    PartitionConfig,
    PersonalizationConfig,
    PrivacyConfig,
    as_shape,
    load_config,
    nearest,
    parse_config,
    with_simulated_clients,
)

__all__ = [
    "DEFAULT_BROKER",
    "MIXTURE_ONLY",
    "DataConfig",
    "FederationConfig",
    "FleetConfig",
    "ModelConfig",
    "PartitionConfig",
    "PersonalizationConfig",
    "PrivacyConfig",
    "as_shape",
    "load_config",
    "nearest",
    "parse_config",
    "with_simulated_clients",
]
