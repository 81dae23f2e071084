"""Fixtures of the broker's and the export's tests that the benchmarks' tests share."""

from tests.firmware_export.conftest import bundle, digits, lenet, mixture_of
from tests.mqtt_broker.conftest import secured_broker

__all__ = ["bundle", "digits", "lenet", "mixture_of", "secured_broker"]
