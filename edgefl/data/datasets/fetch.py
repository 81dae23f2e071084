"""Finds the files of a data set in `EDGEFL_DATA` or in the cache, and downloads missing files once."""

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from edgefl.base.errors import DataError
from edgefl.base.system.files import write_atomic

DOWNLOAD_BLOCK_BYTES = 1 << 20
DOWNLOAD_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class RemoteFile:
    """The address of a file to download.

    Attributes:
        url: address of the file.
        digest: `sha256:...` or `md5:...` as published, empty if no digest is published.
        max_bytes: maximum size in bytes. A larger file is rejected.
    """

    url: str
    digest: str = ""
    max_bytes: int = 300_000_000


def list_data_folders() -> list[Path]:
    """Return the folders that are searched for data files, in order.

    They are `$EDGEFL_DATA`, if set, and `edgefl/data` in the cache folder (`~/.cache` by default). Downloads
    go to the first one.
    """
    configured = os.environ.get("EDGEFL_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [*([Path(configured)] if configured else []), Path(cache) / "edgefl" / "data"]


def find_file(name: str) -> Path | None:
    """Return the data file or folder of this name, or None if no data folder contains it."""
    return next((folder / name for folder in list_data_folders() if (folder / name).exists()), None)


def find_or_download(name: str, remote: RemoteFile, manual_download: str = "") -> Path:
    """Return the data file of this name, and download it if it is missing.

    Args:
        name: path of the file in the data folder.
        remote: where to download the file from.
        manual_download: how to get the file by hand, for the error. Empty suggests downloading it from its
            address.

    Raises:
        DataError: the file cannot be downloaded or stored. The message explains how to get it by hand.
    """
    path = find_file(name)
    if path:
        return path
    target = list_data_folders()[0] / name
    print(f"downloading {remote.url} to {target}", file=sys.stderr)
    try:
        content = download(remote)
        write_atomic(target, content)
    except (OSError, DataError) as error:
        remedy = manual_download or f"download {remote.url} on another machine, and copy it to {target}"
        raise DataError(
            f"no {name} in {' or '.join(map(str, list_data_folders()))}, and it could not be downloaded: "
            f"{error}; {remedy}"
        ) from error
    return target


def download(remote: RemoteFile) -> bytes:
    """Download a file into memory.

    Raises:
        DataError: the address cannot be read, or the content is too large, incomplete, or has another digest.
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
                        f"{remote.url} has more than {remote.max_bytes} bytes, expected a smaller file"
                    )
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DataError(f"{remote.url}: {error}") from error
    if expected not in (-1, size):
        raise DataError(f"received {size} bytes from {remote.url}, expected {expected}")
    content = b"".join(pieces)
    kind, _, published = remote.digest.partition(":")
    if kind and (received := hashlib.new(kind, content, usedforsecurity=False).hexdigest()) != published:
        raise DataError(
            f"the {kind} of {remote.url} is {received}, expected {published}; it is not the published file"
        )
    return content
