"""The directory of `edgefl aggregator start --out`, which the aggregator creates with mode 0700."""

from dataclasses import dataclass

from edgefl.base.storage.directory import Directory, FileSeries, StoredFile

AGGREGATOR_SPACE_REMEDY = "free some space or choose another --out"


@dataclass(frozen=True)
class AggregatorFiles(Directory):
    """The files of an aggregator."""

    lock = StoredFile("lock", "lock of the running aggregator", "aggregator")
    journal = StoredFile(
        "journal.sqlite", "session, rounds, and the updates of the open round", "aggregator", is_secret=True
    )
    plan = StoredFile("plan/", "plan and initial weights", "aggregator, without --plan")
    measurement = StoredFile(
        "measurement/", "journal and state of the measurement, with normalize", "aggregator", is_secret=True
    )
    range_test = StoredFile(
        "range-test/", "journal and state of the range test, with range_test", "aggregator", is_secret=True
    )
    note = StoredFile("run.json", "configuration, versions, machine", "aggregator", is_secret=True)
    server_state = StoredFile(
        "server_state.safetensors", "server state after the last round", "aggregator", is_secret=True
    )
    masked_sum = StoredFile(
        "masked.sum", "masked sum of the open round, with secure aggregation", "aggregator", is_secret=True
    )
    noise_key = StoredFile(
        "noise.key", "key of noise and cohorts, with [privacy]", "aggregator", is_secret=True
    )
    rounds = StoredFile(
        "rounds.jsonl", "one line per round, with figures of each client", "aggregator", is_secret=True
    )
    clusters = StoredFile(
        "clusters.json", "similarity of clients when they were clustered", "aggregator", is_secret=True
    )
    result = StoredFile("result.json", "result with the figures of each client", "aggregator", is_secret=True)
    paused = StoredFile("paused/", "an empty file per paused client", "edgefl aggregator pause")
    paused_client = FileSeries("paused/{client}", "pauses this client", "edgefl aggregator pause")
    report = StoredFile("report.html", "the federation as one page", "edgefl report")
