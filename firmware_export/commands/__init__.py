"""The commands `edgefl export` and `edgefl infer`."""

from firmware_export.commands.export import export as export
from firmware_export.commands.infer import infer as infer
