"""Counts the bytes of broadcasts and updates on the wire, with the encoders that are used over MQTT."""

import hashlib
from collections.abc import Iterable, Mapping

from edgefl.base.types import Broadcast, Update, Weights
from edgefl.protocol.wire.chunks import CHUNK_BYTES, count_chunks
from edgefl.protocol.wire.messages import Begin, Task
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.tensors import encode_models, encode_weights

_SHA256 = "0" * 64
_SESSION = "0" * 16
_TS = 1763737200.1234567
"""The time of every message. It is fixed, because the number of its digits would change the byte count.

A real time has the same number of digits, or a few less.
"""
_STARTED = 1763737200123


class CommunicationCost:
    """Counts the payload bytes of a federation, without the plan.

    A device requests only models that it lacks.

    Args:
        sent_models: sha256 of the models that each client received in an earlier part of the run, by client
            id.
        codec: codec of the updates, see `edgefl.base.codecs`.
        settings: settings of each task, see `FederationConfig.task_settings`.
    """

    def __init__(
        self,
        sent_models: Mapping[str, Iterable[str]] = {},
        codec: str = "fp32",
        settings: Mapping[str, float] = {},
    ) -> None:
        self._codec = codec
        self._settings = settings
        self._sent_models = {client_id: set(models) for client_id, models in sent_models.items()}
        # The weights are stored with their hash, because an id is unique only while its object exists.
        self._encoded: dict[int, tuple[Weights, str, int]] = {}

    @property
    def sent_models(self) -> dict[str, list[str]]:
        """sha256 of the models that each client has, for JSON. A resumed run passes it as `sent_models`."""
        return {client_id: sorted(models) for client_id, models in sorted(self._sent_models.items())}

    def _measure_weights(self, weights: Weights) -> tuple[str, int]:
        if id(weights) not in self._encoded:
            content = encode_weights(weights)
            self._encoded[id(weights)] = (weights, hashlib.sha256(content).hexdigest(), len(content))
        return self._encoded[id(weights)][1:]

    def count_bytes_down(self, broadcast: Broadcast, client_id: str) -> int:
        """Return the bytes of a task and of the models that a client lacks.

        The client has these models from then on.

        Args:
            broadcast: the content of the task.
        """
        blobs = {name: self._measure_weights(weights) for name, weights in broadcast.models.items()}
        hashes = {name: sha256 for name, (sha256, _) in blobs.items()}
        sent = self._sent_models.get(client_id, set())
        self._sent_models[client_id] = sent | set(hashes.values())
        lacking = dict(blobs[name] for name, sha256 in hashes.items() if sha256 not in sent)
        task = Task(
            session=_SESSION,
            round=broadcast.round,
            phase=broadcast.phase,
            plan=_SHA256,
            models=hashes,
            scalars=broadcast.scalars,
            seed=1,
            deadline_s=120.0,
            codec=self._codec,
            max_staleness=0,
            budget_s=0.0,
            nonce=_SESSION,
            ts=_TS,
            granted=True,
            started=_STARTED,
            settings=self._settings,
        )
        return len(encode_json(task)) + sum(lacking.values())

    def count_bytes_up(self, update: Update) -> int:
        """Return the bytes of an update: the blob of its tensors, and its announcement.

        A device also reports its training time and memory in the announcement. These 55 bytes or so differ
        between devices and are not counted.
        """
        size = len(encode_models(update.deltas, self._codec))
        begin = Begin(
            client_id=update.client_id,
            session=_SESSION,
            round=update.round,
            plan=_SHA256,
            sha256=_SHA256,
            size=size,
            count=count_chunks(size),
            chunk_bytes=CHUNK_BYTES,
            num_samples=update.num_samples,
            metrics=update.metrics,
            nonce=_SESSION,
            ts=_TS,
            follows=True,
        )
        return size + len(encode_json(begin))

    def close_round(self, models: Mapping[str, Weights]) -> None:
        """Forget the models of this round that the next round does not use.

        Args:
            models: the models of the server state after the round, by name.
        """
        self._encoded.clear()
        live = {self._measure_weights(weights)[0] for weights in models.values()}
        self._sent_models = {
            client_id: sent & live for client_id, sent in self._sent_models.items() if sent & live
        }
