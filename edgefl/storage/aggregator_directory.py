"""The directory of `edgefl aggregator start --out`. The aggregator creates it with mode 0700."""

from dataclasses import dataclass

from edgefl.storage.directory import Directory, Entry, Series

REMEDY = "free some space or choose another --out"


@dataclass(frozen=True)
class AggregatorFiles(Directory):
    """The files of an aggregator."""

    lock = Entry("lock", "lock of the running aggregator", "aggregator")
    journal = Entry(
        "journal.sqlite", "session, open round and accepted updates", "aggregator", is_secret=True
    )
    plan = Entry("plan/", "plan and initial weights", "aggregator, without --plan")
    note = Entry("run.json", "configuration, versions, machine", "aggregator", is_secret=True)
    server_state = Entry(
        "server_state.safetensors", "server state after the last round", "aggregator", is_secret=True
    )
    spool = Series("spool/{session}/", "updates of the open round", "aggregator", is_secret=True)
    masked_sum = Entry(
        "masked.sum", "masked sum of the open round, with secure aggregation", "aggregator", is_secret=True
    )
    noise_key = Entry("noise.key", "key of noise and cohorts, with [privacy]", "aggregator", is_secret=True)
    rounds = Entry(
        "rounds.jsonl", "one line per round, with figures of each client", "aggregator", is_secret=True
    )
    clusters = Entry(
        "clusters.json", "similarity of clients when they were clustered", "aggregator", is_secret=True
    )
    result = Entry("result.json", "result with the figures of each client", "aggregator", is_secret=True)
    paused = Entry("paused/", "an empty file per paused client", "edgefl aggregator pause")
    paused_client = Series("paused/{client}", "pauses this client", "edgefl aggregator pause")
    report = Entry("report.html", "the federation as one page", "edgefl report")
