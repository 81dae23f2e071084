"""The directory of `edgefl demo`."""

from dataclasses import dataclass

from edgefl.base.storage.directory import Directory, FileSeries, StoredFile


@dataclass(frozen=True)
class DemoFiles(Directory):
    """The files of a demo: the directories of its processes, and their results."""

    config = StoredFile("federation.toml", "configuration of the federation", "edgefl demo")
    aggregator = StoredFile("aggregator/", "aggregator directory", "aggregator")
    shard = FileSeries("shards/{client}.npz", "samples of one client", "edgefl demo", is_secret=True)
    device = FileSeries("devices/{client}/", "device directory of one client", "device")
    logs = StoredFile("logs/", "a log per process", "edgefl demo")
    clients = StoredFile("clients/", "exported models", "edgefl demo")
    client = FileSeries("clients/{client}/", "exported model of one client", "edgefl demo")
    summary = StoredFile("summary.json", "result with the figures of each client", "edgefl demo")
