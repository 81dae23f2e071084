"""Fixtures from the tests of the broker and the export, for the tests of the benchmarks."""

from tests.firmware_export.conftest import bundle, digits, lenet, mixture_of
from tests.mqtt_broker.conftest import secured_broker

__all__ = ["bundle", "digits", "lenet", "mixture_of", "secured_broker"]
