"""Compare what two commits compute, byte for byte, on this machine.

    python tests/support/digests.py BASE            # a commit, beside the checkout this file is in
    python tests/support/digests.py BASE --only ditto --only masked

For each algorithm a small federation is simulated for three rounds at both commits. Compared are the files of
the plan, the server state, each client's mixture, and the C and the model of an exported mixture. Both
commits run on this machine because kernels differ from machine to machine. The script uses only `edgefl`
commands, so the layout of the code does not matter. All cases take about 25 minutes on two cores.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
CONFIG = """
[federation]
name = "digests"
seed = 7
rounds = 3
clients_per_round = 3
codec = "{codec}"
[model]
name = "lenet5"
input_shape = [28, 28, 1]
num_classes = 10
[algorithm]
name = "{name}"
{options}
[data]
name = "digits"
num_train = 300
num_test = 60
[partition]
name = "dirichlet"
num_clients = 4
{more}
"""
FEW_EPOCHS = 2
LEFT_OUT = ("fedbn",)
"""Algorithms that cannot train the model, which has no batch norm."""
VARIANTS = {
    "int8": ("fedavg", "int8", ""),
    "top-10": ("ditto", "top-10+deflate", ""),
    "masked": ("fedavg", "fp32", "[privacy]\nsecure_aggregation = true"),
    "private": ("fedavg", "fp32", "[privacy]\nclip = 1.0\nnoise_multiplier = 1.0\npopulation = 4"),
}
EXPORTED = ("aem", "clustered", "fedap", "fedmix", "pfl-mfe", "fedavg")
GENERATED = ("*.c", "*.h", "*.tflite", "*.cc", "CMakeLists.txt")


def run(tree: Path, *arguments: str) -> str:
    """Run a command of the `edgefl` in this tree and return its standard output."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "edgefl", *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(
            f"{tree}: edgefl {' '.join(arguments)}: exit status {done.returncode}\n{done.stderr}"
        )
    return done.stdout


def options_of(tree: Path) -> dict[str, str]:
    """Return the algorithms' names with the lines of `[algorithm]` that make them short."""
    listed = json.loads(run(tree, "algorithms", "--json"))
    return {
        name: "\n".join(f"{key} = {FEW_EPOCHS}" for key in entry["options"] if key.endswith("epochs"))
        for name, entry in listed.items()
    }


def digest_of_tensors(path: Path) -> str:
    """Return the sha256 of a file's tensors by name. Metadata, such as a session id, does not count."""
    digest = hashlib.sha256()
    for name, array in sorted(load_file(path).items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def digests(
    tree: Path, out: Path, label: str, name: str, codec: str, options: str, more: str
) -> Iterator[tuple[str, str]]:
    """Simulate one federation and yield what it gave: a label and a sha256."""
    config = out / f"{label}.toml"
    config.write_text(CONFIG.format(name=name, codec=codec, options=options, more=more))
    made = out / label
    run(tree, "simulate", str(config), "--out", str(made), "--mixtures", "--json")
    for path in sorted((made / "plan").iterdir()):
        yield f"{label}: plan {path.name}", hashlib.sha256(path.read_bytes()).hexdigest()
    yield f"{label}: server state", digest_of_tensors(made / "server_state.safetensors")
    for mixture in sorted((made / "mixtures").glob("*/mixture.safetensors")):
        yield f"{label}: mixture {mixture.parent.name}", digest_of_tensors(mixture)
    if label in EXPORTED:
        state = min((made / "mixtures").iterdir())
        exported = out / f"{label}-export"
        run(tree, "export", "--state", str(state), "-o", str(exported), "--target", "host")
        for pattern in GENERATED:
            for path in sorted(exported.rglob(pattern)):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                yield f"{label}: export {path.relative_to(exported)}", digest


def all_digests(tree: Path, out: Path, only: list[str]) -> dict[str, str]:
    """Return every digest of a tree by its label. Two federations run at a time.

    Args:
        tree: the checkout.
        out: new directory for the federations.
        only: algorithms and names of `VARIANTS` to simulate. Empty: all.
    """
    out.mkdir()
    names = options_of(tree)
    cases = [(name, name, "fp32", options, "") for name, options in names.items() if name not in LEFT_OUT]
    cases += [(label, name, codec, names[name], more) for label, (name, codec, more) in VARIANTS.items()]
    cases = [case for case in cases if not only or case[0] in only]
    if missing := set(only) - {case[0] for case in cases}:
        raise SystemExit(
            f"--only {', '.join(sorted(missing))}: expected an algorithm or {', '.join(VARIANTS)}"
        )
    found: dict[str, str] = {}
    with ThreadPoolExecutor(2) as pool:
        for rows in pool.map(lambda case: list(digests(tree, out, *case)), cases):
            found.update(rows)
            print(f"{tree.name}: {rows[0][0].partition(':')[0]}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Print each digest that differs, and end with status 1 if one does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="the commit to compare with, such as main~3")
    parser.add_argument(
        "--only", action="append", default=[], help="an algorithm or variant; can be repeated"
    )
    arguments = parser.parse_args()
    base = arguments.base
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        subprocess.run(
            ["git", "worktree", "add", "--detach", str(tree), base], cwd=ROOT, check=True, capture_output=True
        )
        try:
            before = all_digests(tree, Path(folder) / "before", arguments.only)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
        after = all_digests(ROOT, Path(folder) / "after", arguments.only)
    differ = [
        label for label in sorted(before.keys() | after.keys()) if before.get(label) != after.get(label)
    ]
    for label in differ:
        print(f"{label}: {before.get(label, 'absent')} before, {after.get(label, 'absent')} after")
    print(f"{len(before)} digests at {base}, {len(after)} here; {len(differ)} differ")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
