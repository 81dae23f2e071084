"""A client of masked rounds whose steps the test controls, over the messages of a puppet, and helpers
that compute the expected result of masked rounds.
"""

import json
import time

import numpy as np
from safetensors.numpy import load

from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.checkpoint import decode_server_state
from edgefl.protocol.security.secagg.masked_aggregation import average_masked, wrap_means
from edgefl.protocol.security.secagg.participant import Participant
from edgefl.protocol.security.secagg.vectors import encode_deltas, list_shapes, measure_vector
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.wire.masked import Advertised, hash_context
from edgefl.protocol.wire.messages import Want
from edgefl.protocol.wire.strict_json import decode_json, encode_json

SAMPLES = 10


class MaskedPuppet:
    """A client with a zero update over ten samples. `blob_listener` receives all blobs of the federation."""

    def __init__(self, federation, puppet, blob_listener, weights):
        self.federation = federation
        self.puppet = puppet
        self.blob_listener = blob_listener
        self.size = measure_vector(list_shapes({"global": weights}))
        self.participant = None

    def make_vector(self):
        return np.append(np.zeros(self.size - 1, np.uint64), np.uint64(SAMPLES))

    def next(self, phase):
        """Return the next task of that phase. Tasks before it are ignored."""
        while (task := self.puppet.next("task")).phase != phase:
            pass
        return task

    def advertise(self):
        """Receive a task, answer it with fresh keys, and return it."""
        task = self.next("federate")
        self.participant = Participant(
            self.puppet.client_id,
            hash_context(self.federation.name, task),
            Trust(federation=self.federation.name),
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
        messages = self.blob_listener.wait_for_topic(f"blob/{sha256}/0")
        return next(message.payload for message in messages if message.topic.endswith(f"/blob/{sha256}/0"))

    def answer(self, phase):
        """Answer the next task of that phase as the protocol requires, and return the task."""
        return self.answer_task(self.next(phase))

    def answer_task(self, task):
        content = self.participant.answer(task.phase, self.fetch(task), self.make_vector)
        assert self.puppet.send(task, content, metrics={}).outcome == "ok"
        return task

    def refuse(self, phase):
        """Answer the next task of that phase as a client without keys after a restart."""
        receipt = self.puppet.send(self.next(phase), b"", metrics={})
        assert (receipt.outcome, "cannot" in receipt.reason) == ("rejected", True)


def load_server_state(federation):
    return decode_server_state((federation.out / "server_state.safetensors").read_bytes())


def decode_deltas(blob):
    deltas = {}
    for name, array in load(blob).items():
        model, _, weight = name.partition("/")
        deltas.setdefault(model, {})[weight] = array
    return deltas


def load_update(federation, client_id, round=1):
    """Return the update that a device trained in a round, from its own files, and its stored bytes."""
    directory = federation.directory / f"state-{client_id}"
    for path in directory.glob("round-*"):
        header, _, blobs = path.read_bytes().partition(b"\n")
        progress = json.loads(header)
        if progress["round"] == round:
            blob = blobs[: progress["update_bytes"]]
            return Update(
                client_id=client_id,
                round=round,
                num_samples=progress["num_samples"],
                deltas=decode_deltas(blob),
            ), blob
    raise AssertionError(f"{client_id} kept nothing of round {round}")


def list_revealing_bytes(update):
    """Return byte strings each of which would reveal a part of an update: its tensors, and its unmasked
    vector.
    """
    arrays = [array for weights in update.deltas.values() for array in weights.values()]
    vector = encode_deltas(update.deltas, update.num_samples, list_shapes(update.deltas))
    runs = [array.ravel()[i : i + 4] for array in arrays for i in range(0, array.size, 4)]
    return [values.tobytes() for values in runs if np.count_nonzero(values) == 4] + [
        vector[i : i + 2].tobytes() for i in range(0, len(vector) - 1, 2) if vector[i : i + 2].all()
    ]


def aggregate_updates(federation, initial, updates):
    """Return the server state after a first round with these updates."""
    spec = federation.plan.spec
    algorithm = make_algorithm(spec.algorithm, None, spec.options)
    state = algorithm.init(initial, derive_rng(5, 0, "init"))
    shapes = list_shapes(algorithm.broadcast(state, "").models)
    means = average_masked(shapes, updates, sorted(update.client_id for update in updates), "test")
    return algorithm.aggregate(state, wrap_means(means, 1))


def make_zero_update(client_id, weights):
    """Return the update of a masked puppet."""
    return Update(
        client_id=client_id,
        round=1,
        num_samples=SAMPLES,
        deltas={"global": {name: 0 * array for name, array in weights.items()}},
    )


def check_models(federation, expected):
    """Assert that the models of the federation match the state bit for bit."""
    found = load_server_state(federation).models
    assert found.keys() == expected.models.keys()
    for model, weights in expected.models.items():
        assert {name: array.tobytes() for name, array in found[model].items()} == {
            n: a.tobytes() for n, a in weights.items()
        }


def list_advertised_keys(messages):
    """Return all advertised keys among these messages."""
    found = []
    for message in messages:
        if (
            "/up/" in message.topic
            and message.payload.startswith(b'{"client_id":')
            and b'"context"' in message.payload
        ):
            found.append(decode_json(Advertised, message.payload))
    return found
