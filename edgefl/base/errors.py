"""The errors that a user may see.

Each message names the expected value, the received value and a remedy.
"""


class EdgeflError(Exception):
    """Base class of all errors that edgefl raises on purpose. The CLI prints it and exits with 1."""


class ConfigError(EdgeflError):
    """A configuration file, option or argument that cannot be used."""


class DataError(EdgeflError):
    """A data set or shard that cannot be read or trained on."""


class DivergedError(DataError):
    """A training whose loss is not a finite number or does not fall."""


class PlanError(EdgeflError):
    """A model that cannot be compiled, or a plan that cannot be run."""


class WireError(EdgeflError):
    """Bytes from the network that violate the protocol."""


class LinkError(EdgeflError):
    """A broker that cannot be reached or rejects a message."""


class RoundError(EdgeflError):
    """A round that cannot be opened or closed."""


class StateError(EdgeflError):
    """A state directory that cannot be read or written."""


class ExportError(EdgeflError):
    """A mixture that cannot be exported."""


class ModelFileError(PlanError, ExportError):
    """A `.tflite` file that cannot be read, of a plan or for an export."""
