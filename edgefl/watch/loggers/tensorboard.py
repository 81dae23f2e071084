"""Writes scalars to TensorBoard event files with tensorboardX, which does not need TensorFlow.

A round that is written again after a restart has the same values. Earlier events therefore need no purge.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from edgefl.base.errors import ConfigError
from edgefl.base.round_scalars import Writer


@contextmanager
def open_tensorboard(directory: str) -> Iterator[Writer]:
    """Open an event file in a directory. Each step is in the file about a second later.

    Raises:
        ConfigError: the directory or the file cannot be created.
    """
    from tensorboardX import SummaryWriter

    try:
        writer = SummaryWriter(directory, flush_secs=1)  # flush() would not wait for the queue
    except OSError as error:
        raise ConfigError(
            f"--log tensorboard:{directory}: {error.strerror}; give a writable directory"
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
