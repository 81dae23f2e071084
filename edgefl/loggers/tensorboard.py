"""Scalars in TensorBoard's event files, by tensorboardX: TensorFlow is not imported.

A round that is written again after a restart has the same values, so what was written before needs no purge.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from edgefl.errors import ConfigError
from edgefl.loggers.scalars import Writer


@contextmanager
def open_tensorboard(directory: str) -> Iterator[Writer]:
    """Open an event file in a directory; each step is in it a second later.

    ConfigError when it cannot be made.
    """
    from tensorboardX import SummaryWriter

    try:
        writer = SummaryWriter(directory, flush_secs=1)  # its flush() does not wait for its queue
    except OSError as error:
        raise ConfigError(
            f"--log tensorboard:{directory}: {error.strerror}; give a directory that can be written"
        ) from error

    def write(step: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)

    def write_tag(tag_name: str, text: str) -> None:
        writer.add_text(tag_name, text)

    try:
        yield Writer(write, write_tag)
    finally:
        writer.close()
