"""edgefl: federated training of small networks on devices, with a personal int8 model for each device."""

__version__ = "0.2.0"
