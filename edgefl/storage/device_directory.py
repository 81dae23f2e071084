"""What a device keeps of a finished federation, for the export: `device.json`, `plan/` and
`mixture.safetensors`.

Every file is covered by a digest. The mixture carries its own and the id of its plan, which is the sha256 of
the whole plan; `device.json` carries its own. So files of different moments, or a flipped bit, are noticed.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgefl.errors import EdgeflError, StateError
from edgefl.plan.spec import Plan, load_plan, save_plan
from edgefl.storage.checkpoint import decode_stored_mixture, encode_mixture
from edgefl.system.files import FREE_SPACE, SECRET, write_errors, write_state
from edgefl.types import Mixture

DEVICE = "device.json"
MIXTURE = "mixture.safetensors"
PLAN = "plan"
DIGEST = "sha256"


def save_mixture(directory: Path, plan: Plan, mixture: Mixture, remedy: str = FREE_SPACE) -> None:
    """Write a mixture with the id of its plan; StateError with the remedy when the disk refuses it."""
    write_state(directory / MIXTURE, encode_mixture(mixture, plan.id), SECRET, remedy)


def save_personal(directory: Path, plan: Plan, mixture: Mixture) -> None:
    """Write a plan and its mixture; StateError when the disk refuses them."""
    with write_errors(directory / PLAN):
        save_plan(plan, directory / PLAN)
    save_mixture(directory, plan, mixture)


def load_personal(directory: Path) -> tuple[Plan, Mixture, bool]:
    """Read what `save_personal` wrote.

    Returns:
        The plan, the mixture, and whether digests covered both: files of an older edgefl carry none.

    Raises:
        StateError: A file is missing or damaged, or plan and mixture do not belong together.
    """
    path = directory / MIXTURE
    try:
        stored = decode_stored_mixture(path.read_bytes())
    except OSError as error:
        raise StateError(
            f"{directory} holds no mixture yet: {error}; it is made when the federation ends"
        ) from error
    except EdgeflError as error:
        raise StateError(f"{path}: {error}") from error
    plan = load_plan(directory / PLAN)
    if stored.plan_id and stored.plan_id != plan.id:
        raise StateError(
            f"{directory / PLAN} is damaged, or of another federation: its sha256 is {plan.id}, expected "
            f"{stored.plan_id} by {MIXTURE}; copy the directory again, or let the device personalize again"
        )
    return plan, stored.mixture, bool(stored.plan_id)


def encode_note(note: Mapping[str, Any]) -> bytes:
    """Return `device.json` with its digest."""
    return (json.dumps({**note, DIGEST: _digest(note)}, indent=1) + "\n").encode()


def decode_note(blob: bytes) -> dict[str, Any]:
    """Return what `device.json` says, without its digest. A file of an older edgefl has none.

    Raises:
        ValueError: It is no JSON object, or differs from its digest.
    """
    note = json.loads(blob)
    if not isinstance(note, dict):
        raise ValueError(f"a {type(note).__name__}, expected an object")
    digest = note.pop(DIGEST, None)
    if digest is not None and digest != _digest(note):
        raise ValueError(f"its sha256 is {_digest(note)}, expected {digest}")
    return note


def _digest(note: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(note), sort_keys=True).encode()).hexdigest()
