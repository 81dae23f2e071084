"""What the last two exchanges of a masked round need, on disk: it is settled whose words the sum holds, also
after a restart.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgefl.errors import StateError, WireError
from edgefl.security.secagg.masking import Words
from edgefl.security.secagg.secure_sum import PublicKeys
from edgefl.storage.aggregator_directory import REMEDY
from edgefl.system.files import SECRET, parse_json, write_state
from edgefl.wire.masked import DIGESTS_BYTES
from edgefl.wire.messages import Begin
from edgefl.wire.strict_json import decode_json, encode_json


@dataclass(frozen=True)
class Held:
    """One attempt whose masked words have come.

    binding: see `wire.masked.binding_of`; public: the keys of who advertised; shared: who shared theirs out,
    sorted; begins: the announcements of the clients whose words came, by id; total: the sum of these words,
    masked until `unmasked`; digests: of each client whose words came, the digests of the shares that were
    dealt to it, 64 bytes for each of `shared`; agreed: the blob of `unmask`, empty before clients agreed.
    """

    session: str
    round: int
    attempt: str
    binding: str
    public: Mapping[str, PublicKeys]
    shared: tuple[str, ...]
    begins: tuple[Begin, ...]
    total: Words
    digests: Mapping[str, bytes]
    agreed: bytes = b""
    unmasked: bool = False

    @property
    def came(self) -> tuple[str, ...]:
        """Whose words are in the sum, sorted."""
        return tuple(begin.client_id for begin in self.begins)


def save_held(held: Held, path: Path) -> None:
    """Write a line of JSON, the digests and the words; StateError when the disk does not take them."""
    keys = {
        client_id: [base64.b64encode(k).decode() for k in (each.seal, each.mask, each.seed)]
        for client_id, each in held.public.items()
    }
    told = {
        "session": held.session,
        "round": held.round,
        "attempt": held.attempt,
        "binding": held.binding,
        "public": keys,
        "shared": held.shared,
        "begins": [encode_json(begin).decode() for begin in held.begins],
        "agreed": held.agreed.decode(),
        "unmasked": held.unmasked,
    }
    digests = b"".join(held.digests[client_id] for client_id in held.came)
    content = json.dumps(told).encode() + b"\n" + digests + held.total.astype("<u8").tobytes()
    write_state(path, content, SECRET, REMEDY)


def load_held(path: Path, session: str, round: int, size: int) -> Held | None:
    """Return what was saved of this round, a sum of so many words; None when there is nothing of it.

    StateError when it is damaged.
    """
    try:
        line, _, content = path.read_bytes().partition(b"\n")
        told = parse_json(line)
        if (told["session"], told["round"]) != (session, round):
            return None
        public = {
            client_id: PublicKeys(*map(base64.b64decode, keys)) for client_id, keys in told["public"].items()
        }
        begins = tuple(decode_json(Begin, text.encode()) for text in told["begins"])
        shared = tuple(told["shared"])
        one = DIGESTS_BYTES * len(shared)
        words = content[one * len(begins) :]
        digests = {
            begin.client_id: content[one * place : one * (place + 1)] for place, begin in enumerate(begins)
        }
        total = np.frombuffer(words, "<u8").astype(np.uint64)
        if len(total) != size:
            raise ValueError(f"{len(total)} words, expected {size}")
        return Held(
            session,
            round,
            told["attempt"],
            told["binding"],
            public,
            shared,
            begins,
            total,
            digests,
            told["agreed"].encode(),
            told["unmasked"],
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, WireError) as error:
        raise StateError(f"cannot read {path}: {error}; begin anew with --fresh") from error
