"""Files of a data set: in `EDGEFL_DATA` or the cache, else fetched once from the data set's own home."""

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from edgefl.errors import DataError
from edgefl.system.files import write_atomic

DOWNLOAD_BLOCK_BYTES = 1 << 20
DOWNLOAD_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class RemoteFile:
    """Where a file comes from. digest: `sha256:...` or `md5:...` as its makers or mirrors publish it, empty
    when they publish none.
    """

    url: str
    digest: str = ""
    max_bytes: int = 300_000_000


def list_data_folders() -> list[Path]:
    """Return where files are looked for, in order.

    The first is where they are put: `$EDGEFL_DATA`, then `~/.cache/edgefl/data`.
    """
    configured = os.environ.get("EDGEFL_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [*([Path(configured)] if configured else []), Path(cache) / "edgefl" / "data"]


def find_file(name: str) -> Path | None:
    """Return the file or folder of that name, None when it is in no place."""
    return next((folder / name for folder in list_data_folders() if (folder / name).exists()), None)


def find_or_download(name: str, remote: RemoteFile, manual_download: str = "") -> Path:
    """Return the file of that name, fetched when it is not there; DataError says how to get it by hand."""
    path = find_file(name)
    if path:
        return path
    target = list_data_folders()[0] / name
    print(f"fetching {remote.url} into {target}", file=sys.stderr)
    try:
        content = download(remote)
        write_atomic(target, content)
    except (OSError, DataError) as error:
        remedy = manual_download or f"download {remote.url} on a machine that can, and put it at {target}"
        raise DataError(
            f"no {name} in {' or '.join(map(str, list_data_folders()))}, and it could not be fetched: "
            f"{error}; {remedy}"
        ) from error
    return target


def download(remote: RemoteFile) -> bytes:
    """Return what lies at the address.

    DataError when it cannot be read, is too large, cut short, or not what was published.
    """
    import http.client
    import urllib.request

    pieces: list[bytes] = []
    size = 0
    try:
        request = urllib.request.Request(remote.url, headers={"User-Agent": "edgefl"})
        with urllib.request.build_opener().open(request, timeout=DOWNLOAD_TIMEOUT_S) as answer:
            expected = int(answer.headers.get("Content-Length") or -1)
            while piece := answer.read(DOWNLOAD_BLOCK_BYTES):
                pieces.append(piece)
                size += len(piece)
                if size > remote.max_bytes:
                    raise DataError(
                        f"more than {remote.max_bytes} bytes at {remote.url}, expected a smaller file"
                    )
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DataError(f"{remote.url}: {error}") from error
    if expected not in (-1, size):
        raise DataError(f"{size} bytes came from {remote.url}, expected {expected}")
    content = b"".join(pieces)
    kind, _, published = remote.digest.partition(":")
    if kind and (received := hashlib.new(kind, content, usedforsecurity=False).hexdigest()) != published:
        raise DataError(
            f"the {kind} of {remote.url} is {received}, expected {published}; it is not the published file"
        )
    return content
