"""Measures the HDF5 file of a `.keras` archive without reading its arrays.

HDF5 compresses data, so a file of a kilobyte may contain arrays of gigabytes. A file may also refer to other
files of the machine, through external links, external storage or virtual datasets. The HDF5 library is C code
that reads untrusted bytes. Therefore a separate process with limits on memory and time checks the file first:
`python -m edgefl.program.models.weights_file MODEL.keras` prints one JSON object.
"""

import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

WEIGHTS_FILE = "model.weights.h5"
MEMORY_LIMIT_BYTES = 3 << 30
MEASURE_CPU_LIMIT_S = 60
MEASURE_TIMEOUT_S = 300.0
NUMBER_KINDS = "biufV"
"""Kinds of array elements of a fixed size. V is bfloat16."""


def measure_in_subprocess(path: Path) -> tuple[int, str]:
    """Measure the arrays of the weights in a `.keras` archive.

    A damaged or malicious file can only end the child process.

    Returns:
        The size of the arrays in bytes, and the reason to reject the file, or "" if there is none.
    """
    command = [sys.executable, "-m", "edgefl.program.models.weights_file", str(path)]
    # One thread, because the stack and buffers of each thread count against the memory limit.
    single_threaded = {
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MEASURE_TIMEOUT_S,
            env={**os.environ, **single_threaded},
        )
        report = json.loads(done.stdout)
        return int(report["bytes"]), str(report["problem"])
    except subprocess.TimeoutExpired:
        return 0, f"checking {WEIGHTS_FILE} took more than {MEASURE_TIMEOUT_S:g} s"
    except (ValueError, KeyError, TypeError):
        return (
            0,
            f"{WEIGHTS_FILE} ended the process that checked it (exit code {done.returncode}): it is "
            "damaged, or needs too much memory",
        )


def _measure(path: str) -> tuple[int, str]:
    import h5py

    with zipfile.ZipFile(path) as archive:
        content = archive.read(WEIGHTS_FILE)
    total = 0
    with h5py.File(io.BytesIO(content), "r") as file:
        groups = [file]
        seen = set()
        while groups:
            group = groups.pop()
            for name in group:
                link = group.get(name, getlink=True)
                if not isinstance(link, h5py.HardLink):
                    return total, f"{WEIGHTS_FILE} contains a link to another object or file ({name!r})"
                entry = group[name]
                address = h5py.h5o.get_info(entry.id).addr
                if address in seen:
                    continue
                seen.add(address)
                if isinstance(entry, h5py.Group):
                    groups.append(entry)
                    continue
                if problem := _find_problem(entry):
                    return total, f"{WEIGHTS_FILE}: {name!r} {problem}"
                total += int(entry.size) * int(entry.dtype.itemsize)
    return total, ""


def _find_problem(entry: Any) -> str:
    import h5py

    if not isinstance(entry, h5py.Dataset):
        return "is not an array"
    if entry.external:
        return "stores its values in another file"
    if entry.is_virtual:
        return "reads its values from other arrays"
    if entry.size is None or entry.dtype.kind not in NUMBER_KINDS:
        return f"holds {entry.dtype}, expected numbers"
    return ""


def main() -> None:
    """Print the report as JSON. The only argument is the archive."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MEASURE_CPU_LIMIT_S, MEASURE_CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        total, problem = _measure(sys.argv[1])
    except Exception as error:  # damaged files raise many types
        total = 0
        problem = (
            f"{WEIGHTS_FILE} cannot be read ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no reason'})"
        )
    print(json.dumps({"bytes": total, "problem": problem}))


if __name__ == "__main__":
    main()
