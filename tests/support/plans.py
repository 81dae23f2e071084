"""Plans that the tests build once, in a directory whose names are digests of all that a plan depends on."""

import fcntl
import hashlib
import importlib.metadata
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from edgefl.base.config import FederationConfig
from edgefl.base.types import Weights
from edgefl.program.plan.spec import INITIAL_FILE, Plan, load_plan, save_plan
from edgefl.protocol.server.initial_weights import decode_initial_weights
from edgefl.protocol.wire.tensors import encode_weights
from tests.support.rooms import sources

PACKAGES = ("tensorflow", "keras", "numpy", "ai-edge-litert")
Builder = Callable[[FederationConfig], tuple[Plan, Weights]]


@cache
def compute_code_digest() -> str:
    """Return the digest of the product's code and of the versions of the packages that compile a plan."""
    total = hashlib.sha256(" ".join(importlib.metadata.version(name) for name in PACKAGES).encode())
    for path in sources("edgefl"):
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def read_or_make(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return the content of a file, which one of several processes makes.

    Args:
        path: the file, in an existing directory.
        make: makes the content, and is called only if there is no such file.
    """
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix(".writing")
            unfinished.write_bytes(make())
            os.replace(unfinished, path)
    return path.read_bytes()


def compute_key(config: FederationConfig) -> str:
    """Return the name of the plan of a configuration, which depends on the content of a model file too."""
    total = hashlib.sha256(compute_code_digest().encode())
    model = Path(config.model.name)
    if model.is_file():
        total.update(model.read_bytes())
    total.update(repr(config).encode())
    return total.hexdigest()


def make_cached_builder(build: Builder, directory: Path) -> Builder:
    """Return a builder that builds each plan once, also if several processes ask for it at the same time.

    Args:
        build: builds the plan and the initial weights of a configuration.
        directory: existing directory of the plans, which several processes may share.
    """

    def build_cached(config: FederationConfig) -> tuple[Plan, Weights]:
        folder = directory / compute_key(config)
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / INITIAL_FILE).exists():
                plan, initial = build(config)
                save_plan(plan, folder)
                (folder / "writing").write_bytes(encode_weights(initial))
                os.replace(folder / "writing", folder / INITIAL_FILE)
        plan = load_plan(folder)
        return plan, decode_initial_weights((folder / INITIAL_FILE).read_bytes(), plan.spec, str(folder))

    return build_cached
