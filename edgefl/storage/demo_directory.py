"""The directory of `edgefl demo`."""

from dataclasses import dataclass

from edgefl.storage.directory import Directory, Entry, Series


@dataclass(frozen=True)
class DemoFiles(Directory):
    """The files of a demo: directories of its processes, and what they made."""

    config = Entry("federation.toml", "configuration of the federation", "edgefl demo")
    aggregator = Entry("aggregator/", "aggregator directory", "aggregator")
    shard = Series("shards/{client}.npz", "samples of one client", "edgefl demo", is_secret=True)
    device = Series("devices/{client}/", "device directory of one client", "device")
    logs = Entry("logs/", "a log per process", "edgefl demo")
    clients = Entry("clients/", "exported models", "edgefl demo")
    client = Series("clients/{client}/", "exported model of one client", "edgefl demo")
    summary = Entry("summary.json", "result with the figures of each client", "edgefl demo")
