"""Files that survive a power cut: written beside their place, synced, then renamed over it."""

import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """Replace the file by the content, wholly or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
