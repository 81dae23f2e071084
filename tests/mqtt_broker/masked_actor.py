"""A client of masked rounds whose every step the test takes, over the messages of a puppet; and what tests
compare masked rounds with.
"""

import json
import time

import numpy as np
from safetensors.numpy import load

from edgefl.algorithms import make_algorithm
from edgefl.rng import derive_rng
from edgefl.security.secagg.masked_aggregation import average_masked, wrap_means
from edgefl.security.secagg.participant import Participant
from edgefl.security.secagg.vectors import encode_deltas, list_shapes, measure_vector
from edgefl.security.trust import Trust
from edgefl.storage.checkpoint import decode_server_state
from edgefl.types import Update
from edgefl.wire.masked import Advertised, hash_context
from edgefl.wire.messages import Want
from edgefl.wire.strict_json import decode_json, encode_json

SAMPLES = 10


class MaskedPuppet:
    """Its update is zero, over ten samples; `ear` hears all blobs of the federation."""

    def __init__(self, federation, puppet, ear, weights):
        self.federation = federation
        self.puppet = puppet
        self.ear = ear
        self.size = measure_vector(list_shapes({"global": weights}))
        self.participant = None

    def words(self):
        return np.append(np.zeros(self.size - 1, np.uint64), np.uint64(SAMPLES))

    def next(self, phase):
        """Return the next task of that phase; those before it are passed over."""
        while (task := self.puppet.next("task")).phase != phase:
            pass
        return task

    def advertise(self):
        """Take a task, and answer it with fresh keys; returns the task."""
        task = self.next("federate")
        self.participant = Participant(
            self.puppet.client_id, hash_context(self.federation.name, task), Trust(self.federation.name)
        )
        assert self.puppet.send(task, self.participant.advertise(), metrics={}).outcome == "ok"
        return task

    def fetch(self, task):
        [sha256] = task.models.values()
        client_id = self.puppet.client_id
        link = self.puppet.link
        link.publish(
            self.federation.topics.format_device(client_id, "want"),
            encode_json(Want(sha256, (), time.time())),
        )
        heard = self.ear.until(f"blob/{sha256}/0")
        return next(message.payload for message in heard if message.topic.endswith(f"/blob/{sha256}/0"))

    def answer(self, phase):
        """Answer the next task of that phase as the protocol says; returns the task."""
        return self.answer_to(self.next(phase))

    def answer_to(self, task):
        said = self.participant.answer(task.phase, self.fetch(task), self.words)
        assert self.puppet.send(task, said, metrics={}).outcome == "ok"
        return task

    def cannot(self, phase):
        """Answer the next task of that phase as one who was started again."""
        receipt = self.puppet.send(self.next(phase), b"", metrics={})
        assert (receipt.outcome, "cannot" in receipt.reason) == ("rejected", True)


def state_of(federation):
    return decode_server_state((federation.out / "server_state.safetensors").read_bytes())


def deltas_of(blob):
    deltas = {}
    for name, array in load(blob).items():
        model, _, weight = name.partition("/")
        deltas.setdefault(model, {})[weight] = array
    return deltas


def update_of(federation, client_id, round=1):
    """Return what a device trained in a round, from its own files, and the bytes that it kept."""
    directory = federation.directory / f"state-{client_id}"
    for name in ("progress.json", "progress.before.json"):
        progress = json.loads((directory / name).read_text())
        if progress["round"] == round:
            blob = (directory / progress["update"]).read_bytes()
            return Update(client_id, round, progress["num_samples"], deltas_of(blob)), blob
    raise AssertionError(f"{client_id} kept nothing of round {round}")


def showing(update):
    """Return byte strings of which each would show some of an update: its tensors, and its words without a
    mask.
    """
    arrays = [array for weights in update.deltas.values() for array in weights.values()]
    words = encode_deltas(update.deltas, update.num_samples, list_shapes(update.deltas))
    told = [array.ravel()[i : i + 4] for array in arrays for i in range(0, array.size, 4)]
    return [values.tobytes() for values in told if np.count_nonzero(values) == 4] + [
        words[i : i + 2].tobytes() for i in range(0, len(words) - 1, 2) if words[i : i + 2].all()
    ]


def after(federation, initial, updates):
    """Return the server state that a round of these updates makes of the first."""
    spec = federation.plan.spec
    algorithm = make_algorithm(spec.algorithm, None, spec.options)
    state = algorithm.init(initial, derive_rng(5, 0, "init"))
    shapes = list_shapes(algorithm.broadcast(state, "").models)
    means = average_masked(shapes, updates, sorted(update.client_id for update in updates), "test")
    return algorithm.aggregate(state, wrap_means(means, 1))


def zero(client_id, weights):
    """Return the update of a masked puppet."""
    return Update(client_id, 1, SAMPLES, {"global": {name: 0 * array for name, array in weights.items()}})


def check_models(federation, expected):
    """Assert that the federation's models are those of the state, to the bit."""
    found = state_of(federation).models
    assert found.keys() == expected.models.keys()
    for model, weights in expected.models.items():
        assert {name: array.tobytes() for name, array in found[model].items()} == {
            n: a.tobytes() for n, a in weights.items()
        }


def advertised(messages):
    """Return all keys that were advertised, from everything that was said."""
    found = []
    for message in messages:
        if (
            "/up/" in message.topic
            and message.payload.startswith(b'{"client_id":')
            and b'"context"' in message.payload
        ):
            found.append(decode_json(Advertised, message.payload))
    return found
