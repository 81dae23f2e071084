"""The directory of `edgefl simulate`, and of each stage of `edgefl reproduce`."""

from dataclasses import dataclass

from edgefl.base.storage.directory import Directory, FileSeries, StoredFile

RUN_SPACE_REMEDY = "free some space, then continue with --resume"


@dataclass(frozen=True)
class RunFiles(Directory):
    """The files of a simulated federation."""

    note = StoredFile("run.json", "configuration, command, versions, machine", "edgefl simulate")
    plan = StoredFile("plan/", "plan and initial weights", "edgefl simulate")
    server_state = StoredFile(
        "server_state.safetensors", "the last checkpoint of the server", "edgefl simulate"
    )
    clients = StoredFile("clients/", "client states of the last checkpoint", "edgefl simulate")
    client_state = FileSeries(
        "clients/{client}.{round}.safetensors", "what a client keeps between rounds", "edgefl simulate"
    )
    client_models = FileSeries(
        "held.{round}.json", "models that each client was sent last", "edgefl simulate"
    )
    rounds = StoredFile("rounds.jsonl", "one line per round", "edgefl simulate")
    clusters = StoredFile(
        "clusters.json", "similarity of clients when they were clustered", "edgefl simulate"
    )
    layers = StoredFile("layers.json", "similarity of clients by layer", "edgefl simulate --layers-over")
    seconds = StoredFile(
        "client_seconds.jsonl", "processor time of each client in each round", "edgefl reproduce"
    )
    stage = StoredFile("stage.json", "settings of the stage beside the configuration", "edgefl reproduce")
    confusion = StoredFile("confusion.json", "confusion matrix of each client", "edgefl simulate")
    gates = StoredFile("gates.json", "mean gate weights of each client by class", "edgefl simulate")
    summary = StoredFile("summary.json", "result with the figures of each client", "edgefl simulate")
    picture = StoredFile("run.png", "charts of the run", "edgefl simulate")
    report = StoredFile("report.html", "the run as one page", "edgefl report")
    mixtures = StoredFile("mixtures/", "a device directory of each client", "edgefl simulate --mixtures")
    mixture = FileSeries("mixtures/{client}/", "device directory of one client", "edgefl simulate --mixtures")
