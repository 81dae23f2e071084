"""Archives whose headers name another size than their arrays have, or whose arrays exceed the memory."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.errors import DataError
from edgefl.data.arrays import read_arrays


def test_arrays_of_all_shapes_are_read(tmp_path: Path) -> None:
    arrays = {
        "x": np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)),
        "y": np.array(["a", "\xe9"]),
        "empty": np.zeros((0, 4)),
        "one": np.int64(4),
    }
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    for name, array in read_arrays(tmp_path / "a.npz", tuple(arrays)).items():
        np.testing.assert_array_equal(array, arrays[name])


@pytest.mark.parametrize("count", [2**40, 3, 0])
def test_header_with_another_size_than_the_array_is_refused(count: int, tmp_path: Path) -> None:
    content = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(content, header)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content.getvalue() + bytes(8))
    with pytest.raises(DataError, match=f"the header of x.npy names {4 * count} bytes, it has 8"):
        read_arrays(tmp_path / "a.npz", ("x",))


def test_arrays_larger_than_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(100_000), y=np.zeros(100_000))
    monkeypatch.setattr("edgefl.data.arrays.read_total_memory_mb", lambda: 1.0)
    assert read_arrays(tmp_path / "a.npz", ("x",))["x"].size == 100_000
    with pytest.raises(DataError, match=r"its arrays have 1.6e\+06 bytes, this machine has 1e\+06 bytes"):
        read_arrays(tmp_path / "a.npz", ("x", "y"))
