"""The commands `edgefl broker` and `edgefl aggregator`."""

from mqtt_broker.commands.aggregator import aggregator as aggregator
from mqtt_broker.commands.broker import broker as broker
