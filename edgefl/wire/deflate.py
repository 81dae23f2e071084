"""Deflate over the bytes of a whole update, with a bound on what they unpack to.

The bytes of the values are put into planes first, all first bytes, all second ones and so on (Blosc's shuffle): exponents lie beside
exponents then, and the high bytes of ascending places beside each other. RFC 1950, by the zlib of the standard library.
"""

import zlib

import numpy as np

from edgefl.errors import WireError

LEVEL = 6


def squeeze(blob: bytes, itemsize: int) -> bytes:
    """Return the blob, mostly of values of `itemsize` bytes, deflated."""
    whole = len(blob) // itemsize * itemsize
    planes = np.frombuffer(blob, np.uint8, whole).reshape(-1, itemsize).T.tobytes()
    return zlib.compress(planes + blob[whole:], LEVEL)


def expand(blob: bytes, itemsize: int, limit: int, origin: str) -> bytes:
    """Return what `squeeze` was given; `origin` says in errors who sent the bytes.

    Raises WireError for bytes that are not deflated, not whole, or that hold more than `limit` bytes: no more than that is taken.
    """
    stream = zlib.decompressobj()
    try:
        planes = stream.decompress(blob, limit + 1)
    except zlib.error as error:
        raise WireError(f"{origin} sent bytes that are not deflated: {error}; send it again") from error
    if len(planes) > limit:
        raise WireError(f"{origin} sent {len(blob)} bytes that unpack to more than {limit}, the largest update of this plan; restart it")
    if not stream.eof or stream.unused_data:
        raise WireError(f"{origin} sent deflated bytes that end too early or too late; send it again")
    whole = len(planes) // itemsize * itemsize
    return np.frombuffer(planes, np.uint8, whole).reshape(itemsize, -1).T.tobytes() + planes[whole:]
