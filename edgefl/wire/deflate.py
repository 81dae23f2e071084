"""Deflate over the bytes of a whole update, with a bound on what they unpack to.

The bytes of the values are put into planes first, all first bytes, all second ones and so on (Blosc's
shuffle): exponents lie beside exponents then, and the high bytes of ascending places beside each other. RFC
1950, by the zlib of the standard library.
In values nothing but runs of zeros comes again: looking for no more (Z_RLE) is ten times as fast and leaves
fewer bytes.
"""

import zlib

import numpy as np

from edgefl.errors import WireError

DEFLATE_LEVEL = 6


def deflate_blob(blob: bytes, itemsize: int, strategy: int = zlib.Z_RLE) -> bytes:
    """Return the blob, mostly of values of `itemsize` bytes, deflated; `strategy` is one of zlib's."""
    whole = len(blob) // itemsize * itemsize
    planes = np.frombuffer(blob, np.uint8, whole).reshape(-1, itemsize).T.tobytes()
    stream = zlib.compressobj(DEFLATE_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL + 1, strategy)
    return stream.compress(planes + blob[whole:]) + stream.flush()


def inflate_blob(blob: bytes, itemsize: int, limit: int, origin: str) -> bytes:
    """Return what `squeeze` was given; `origin` says in errors who sent the bytes.

    Raises WireError for bytes that are not deflated, not whole, or that hold more than `limit` bytes: no more
    than that is taken.
    """
    stream = zlib.decompressobj()
    try:
        planes = stream.decompress(blob, limit + 1)
    except zlib.error as error:
        raise WireError(f"{origin} sent bytes that are not deflated: {error}; send it again") from error
    if len(planes) > limit:
        raise WireError(
            f"{origin} sent {len(blob)} bytes that unpack to more than {limit}, the largest update of this "
            "plan; restart it"
        )
    if not stream.eof or stream.unused_data:
        raise WireError(f"{origin} sent deflated bytes that end too early or too late; send it again")
    whole = len(planes) // itemsize * itemsize
    return np.frombuffer(planes, np.uint8, whole).reshape(itemsize, -1).T.tobytes() + planes[whole:]
