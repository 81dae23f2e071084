"""edgefl: federated training of small networks on boards, one personal int8 model for each."""

__version__ = "0.2.0"
