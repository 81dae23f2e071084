"""The directory of `edgefl simulate`, and of each stage of `edgefl reproduce`."""

from dataclasses import dataclass

from edgefl.storage.directory import Directory, Entry, Series

REMEDY = "free some space, then go on with --resume"


@dataclass(frozen=True)
class RunFiles(Directory):
    """The files of a simulated federation."""

    note = Entry("run.json", "configuration, command, versions, machine", "edgefl simulate")
    plan = Entry("plan/", "plan and initial weights", "edgefl simulate")
    server_state = Entry("server_state.safetensors", "the last checkpoint of the server", "edgefl simulate")
    clients = Entry("clients/", "client states of the last checkpoint", "edgefl simulate")
    client_state = Series(
        "clients/{client}.{round}.safetensors", "what a client keeps between rounds", "edgefl simulate"
    )
    held = Series("held.{round}.json", "models that each client was sent last", "edgefl simulate")
    rounds = Entry("rounds.jsonl", "one line per round", "edgefl simulate")
    clusters = Entry("clusters.json", "similarity of clients when they were clustered", "edgefl simulate")
    layers = Entry("layers.json", "similarity of clients by layer", "edgefl simulate --layers-over")
    confusion = Entry("confusion.json", "confusion matrix of each client", "edgefl simulate")
    gates = Entry("gates.json", "mean gate weights of each client by class", "edgefl simulate")
    summary = Entry("summary.json", "result with the figures of each client", "edgefl simulate")
    picture = Entry("run.png", "charts of the run", "edgefl simulate")
    report = Entry("report.html", "the run as one page", "edgefl report")
    mixtures = Entry("mixtures/", "a device directory of each client", "edgefl simulate --mixtures")
    mixture = Series("mixtures/{client}/", "device directory of one client", "edgefl simulate --mixtures")
