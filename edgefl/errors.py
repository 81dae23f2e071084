"""The errors that a user may meet. Each message says expected, received, remedy."""


class EdgeflError(Exception):
    """Base of every error that edgefl raises on purpose; the CLI prints it and exits with 1."""


class ConfigError(EdgeflError):
    """A configuration file, option or argument that cannot be used."""


class DataError(EdgeflError):
    """A data set or shard that cannot be read or trained on."""


class DivergedError(DataError):
    """Training whose loss is no finite number, or does not fall."""


class PlanError(EdgeflError):
    """A model that cannot be compiled, or a plan that cannot be run."""


class WireError(EdgeflError):
    """Bytes from the network that are not what the protocol says."""


class LinkError(EdgeflError):
    """A broker that cannot be reached or does not take what is sent."""


class RoundError(EdgeflError):
    """A round that cannot be opened or closed."""


class StateError(EdgeflError):
    """A state directory that cannot be read or written."""


class ExportError(EdgeflError):
    """A mixture that cannot be exported."""


class ModelFileError(PlanError, ExportError):
    """A `.tflite` that cannot be read: one of a plan, or one to be exported."""
