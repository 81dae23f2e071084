"""The command `edgefl device`."""

from devices.commands.device import device as device
