"""Small files that would take minutes to read are refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgefl.base.errors import DataError
from edgefl.data.sources import make_source, read_source
from edgefl.data.sources.sample_files import read_sample


def test_small_picture_file_with_many_pixels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "blank.png"
    Image.new("L", (6000, 6000)).save(path)
    with pytest.raises(DataError, match=r"36000000 pixels in .* bytes, expected at most 100 per byte"):
        read_sample(path)


def test_small_blank_picture_and_large_photo_are_read(tmp_path: Path) -> None:
    Image.new("RGB", (1000, 1000)).save(tmp_path / "blank.png")
    assert read_sample(tmp_path / "blank.png").values.shape == (1000, 1000, 3)
    noise = np.random.default_rng(1).integers(0, 256, (1200, 1200), np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.jpg", quality=30)
    assert read_sample(tmp_path / "photo.jpg").values.shape == (1200, 1200, 1)


def test_csv_with_very_many_columns_is_refused(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(5000)]
    (tmp_path / "wide.csv").write_text(f"{','.join(names)}\n{','.join('1' * 5000)}\n")
    with pytest.raises(DataError, match="names 5000 columns, expected at most 4096"):
        read_source(make_source(str(tmp_path / "wide.csv"), window=1))
