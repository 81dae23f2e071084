"""A folder of classes: files written byte by byte, and an error for each file that cannot be used."""

import shutil
import struct
import wave
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError, DataError
from edgefl.base.tasks.samples import SamplesConfig
from edgefl.data.npz import load_shard
from edgefl.data.sources import load_samples, make_source, parse_source, read_source
from edgefl.data.sources.sample_files import read_sample


def write_png(path, rows, color=0, depth=8):
    """Write a PNG file from its rows: colour type 0 is grey, 2 is RGB, 6 is RGBA."""

    def make_chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    width = len(rows[0]) * 8 // (depth * {0: 1, 2: 3, 6: 4}[color])
    head = struct.pack(">IIBBBBB", width, len(rows), depth, color, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + make_chunk(b"IHDR", head)
        + make_chunk(b"IDAT", body)
        + make_chunk(b"IEND", b"")
    )


def write_wav(path, content, width=2, rate=8000, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)


def write_npy(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)


def read(folder):
    return read_source(make_source(str(folder)))


def test_pictures_are_read_with_their_classes(tmp_path):
    pytest.importorskip("PIL")
    write_png(tmp_path / "dog" / "b.png", [[0, 51], [255, 102]])
    write_png(tmp_path / "cat" / "a.png", [[1, 2], [3, 4]])
    write_png(tmp_path / "cat" / "c.png", [[5, 6], [7, 8]])
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"x")
    arrays = read(tmp_path)
    assert arrays["x"].dtype == np.uint8
    np.testing.assert_array_equal(
        arrays["x"][:, :, :, 0], [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[0, 51], [255, 102]]]
    )
    assert arrays["y"].tolist() == [0, 0, 1]
    assert arrays["class_names"].tolist() == ["cat", "dog"]


def test_colour_one_bit_and_palette_pictures_are_read(tmp_path):
    image = pytest.importorskip("PIL.Image")
    write_png(tmp_path / "colour" / "a" / "1.png", [[1, 2, 3, 4, 5, 6]], color=2)
    np.testing.assert_array_equal(read(tmp_path / "colour")["x"], [[[[1, 2, 3], [4, 5, 6]]]])
    write_png(tmp_path / "bits" / "a" / "1.png", [[0b10100000]], depth=1)
    assert read(tmp_path / "bits")["x"].ravel().tolist() == [255, 0, 255, 0, 0, 0, 0, 0]
    (tmp_path / "palette" / "a").mkdir(parents=True)
    image.fromarray(np.uint8([[[9, 8, 7], [1, 2, 3]]])).quantize(2).save(tmp_path / "palette" / "a" / "1.png")
    assert read(tmp_path / "palette")["x"].tolist() == [[[[9, 8, 7], [1, 2, 3]]]]


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_transparent_colour_of_a_picture_is_refused(tmp_path, mode):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    transparency = (0, 0, 0) if mode == "RGB" else 0
    image.new(mode, (2, 2)).save(tmp_path / "a" / "1.png", transparency=transparency)
    with pytest.raises(DataError, match=rf"1.png is a PNG of mode {mode} with transparency, expected 8-bit"):
        read(tmp_path)


def test_png_and_jpeg_are_read_together(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    image.new("L", (2, 2), 9).save(tmp_path / "a" / "1.png")
    image.new("L", (2, 2), 200).save(tmp_path / "a" / "2.jpg")
    assert read(tmp_path)["x"].ravel().tolist() == [9] * 4 + [200] * 4


@pytest.mark.parametrize(
    ("width", "content", "expected"),
    [
        (1, bytes([0, 128, 255]), [-1.0, 0.0, 127 / 128]),
        (2, struct.pack("<3h", -32768, 0, 16384), [-1.0, 0.0, 0.5]),
        (4, struct.pack("<3i", -(2**31), 0, 2**29), [-1.0, 0.0, 0.25]),
    ],
)
def test_sound_is_scaled_to_one(tmp_path, width, content, expected):
    write_wav(tmp_path / "a" / "1.wav", content, width)
    x = read(tmp_path)["x"]
    assert (x.dtype, x.shape) == (np.float32, (1, 3, 1))
    np.testing.assert_array_equal(x.ravel(), np.float32(expected))


def test_stereo_sound_has_two_channels(tmp_path):
    write_wav(tmp_path / "a" / "1.wav", struct.pack("<4h", 1, 2, 3, 4), channels=2)
    arrays = read(tmp_path)
    np.testing.assert_array_equal(arrays["x"] * 32768, [[[1, 2], [3, 4]]])
    assert arrays["channels"].tolist() == ["sound 1 at 8000 Hz", "sound 2 at 8000 Hz"]


def test_sound_of_another_rate_than_the_federation_is_refused(tmp_path):
    write_wav(tmp_path / "a" / "1.wav", struct.pack("<3h", 1, 2, 3))
    source = make_source(str(tmp_path))
    assert "channels" in read_source(source, SamplesConfig(channels=("sound at 8000 Hz",)))
    with pytest.raises(DataError, match="no channel 'sound at 16000 Hz' among sound at 8000 Hz"):
        read_source(source, SamplesConfig(channels=("sound at 16000 Hz",)))


def test_npy_files_give_the_same_shard_as_an_npz_file(tmp_path):
    rng = np.random.default_rng(0)
    for dtype in (np.uint8, np.float64):
        values = (rng.random((10, 4, 2)) * 255).astype(dtype)
        for index, value in enumerate(values):
            write_npy(tmp_path / dtype.__name__ / str(index % 2) / f"{index}.npy", value)
        order = [*range(0, 10, 2), *range(1, 10, 2)]
        np.savez(tmp_path / "same.npz", x=values[order], y=np.array(order) % 2)
        one = load_samples(make_source(str(tmp_path / dtype.__name__)), seed=4, num_classes=2).shard
        two = load_shard(tmp_path / "same.npz", seed=4, num_classes=2)
        for name in ("x_train", "y_train", "x_test", "y_test"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
            assert getattr(one, name).dtype == getattr(two, name).dtype


def test_classes_are_numbered_by_folder_name_or_classes_txt(tmp_path):
    for name in ("10", "9", "2"):
        write_npy(tmp_path / name / "a.npy", np.float32([1, 2]))
    assert read(tmp_path)["y"].tolist() == [10, 2, 9]  # whole numbers keep their values
    assert "class_names" not in read(tmp_path)
    (tmp_path / "classes.txt").write_text("9\n\n 10 \n7\n2\n")
    assert read(tmp_path)["y"].tolist() == [1, 3, 0]
    assert read(tmp_path)["class_names"].tolist() == ["9", "10", "7", "2"]
    write_npy(tmp_path / "09" / "a.npy", np.float32([1, 2]))
    with pytest.raises(DataError, match=r"'09' is not in .*classes.txt; did you mean '9'"):
        read(tmp_path)
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(DataError, match="the same number twice"):
        read(tmp_path)


def test_error_for_a_missing_class_suggests_a_class_list(tmp_path):
    for name in ("cat", "fox"):
        for index in range(5):
            write_npy(tmp_path / name / f"{index}.npy", np.float32([index, 2]))
    source = make_source(str(tmp_path))
    assert load_samples(source, num_classes=2).shard.num_classes == 2
    with pytest.raises(
        DataError,
        match=r"has 2 classes \(cat, fox\), the federation has 3; list .* without samples on this board",
    ):
        load_samples(source, num_classes=3)
    (tmp_path / "dog").mkdir()  # an empty folder also counts as a class
    assert sorted(set(load_samples(source, num_classes=3).shard.y_train.tolist())) == [0, 2]
    (tmp_path / "dog").rmdir()
    (tmp_path / "classes.txt").write_text("cat\ndog\nfox\n")
    assert sorted(set(load_samples(source, num_classes=3).shard.y_train.tolist())) == [0, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"a\nb\na\n", "'a' twice"), (b" \n", "is empty"), (b"\xff\xfe\x00", "not a text file")],
)
def test_invalid_class_lists_are_refused(tmp_path, text, message):
    write_npy(tmp_path / "a" / "a.npy", np.float32([1, 2]))
    (tmp_path / "classes.txt").write_bytes(text)
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def write_grey_png(path):
    write_png(path, [[1, 2], [3, 4]])


BAD = [
    ("text.png", lambda path: path.write_text("hello"), "cannot be read as PNG"),
    (
        "cut.png",
        lambda path: (write_grey_png(path), path.write_bytes(path.read_bytes()[:45])),
        "cannot be read as PNG",
    ),
    (
        "clear.png",
        lambda path: write_png(path, [[1, 2, 3, 4]], color=6),
        "mode RGBA, expected 8-bit grey or RGB",
    ),
    ("deep.png", lambda path: write_png(path, [[1, 2, 3, 4]], depth=16), r"mode I[;16]*, expected 8-bit"),
    (
        "large.png",
        lambda path: write_png(path, [[1, 2, 3], [4, 5, 6]]),
        r"large.png is a picture of shape \(2, 3, 1\), expected a picture of shape .*--resize HxW",
    ),
    (
        "other.npy",
        lambda path: write_npy(path, np.zeros((2, 2, 1))),
        r"other.npy is floats of shape .*, expected a picture .*: convert them",
    ),
    (
        "notes.txt",
        lambda path: path.write_text("hello"),
        "notes.txt is not a sample, expected a file named .npy, .png, .jpg, .jpeg, .wav",
    ),
    ("deeper.png", lambda path: path.mkdir(), "is not a sample"),
    (
        "colour.png",
        lambda path: write_png(path, [[1, 2, 3] * 2] * 2, color=2),
        r"colour.png is a picture of shape \(2, 2, 3\).*convert all of them to grey, or all of them to RGB",
    ),
]


@pytest.mark.parametrize(("name", "damage", "message"), BAD, ids=[row[0] for row in BAD])
def test_error_for_a_bad_picture_names_the_file(tmp_path, name, damage, message):
    pytest.importorskip("PIL")
    write_grey_png(tmp_path / "a" / "a.png")
    damage(tmp_path / "a" / name)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path)
    assert str(tmp_path / "a" / name) in str(caught.value)


BAD_FILES = [
    ("text.npy", lambda path: path.write_text("hello"), "cannot be read as .npy"),
    (
        "cut.npy",
        lambda path: (write_npy(path, np.zeros(3)), path.write_bytes(path.read_bytes()[:-4])),
        "cannot be read as .npy",
    ),
    (
        "objects.npy",
        lambda path: np.save(path, np.array([{}], object), allow_pickle=True),
        "cannot be read as .npy",
    ),
    (
        "whole.npy",
        lambda path: write_npy(path, np.arange(3)),
        r"int64\[3\], expected an array of uint8 or floats",
    ),
    ("none.npy", lambda path: write_npy(path, np.float32([1, np.nan])), "NaN"),
    ("great.npy", lambda path: write_npy(path, np.float64([1, 1e300])), "infinite"),
    ("text.wav", lambda path: path.write_text("hello"), "cannot be read as WAV"),
    ("empty.wav", lambda path: write_wav(path, b""), "0 bytes"),
    (
        "cut.wav",
        lambda path: (write_wav(path, b"12345678"), path.write_bytes(path.read_bytes()[:-2])),
        "contains 6 bytes of sound, expected 8",
    ),
    ("three.wav", lambda path: write_wav(path, b"123456", width=3), "24 bits"),
]


@pytest.mark.parametrize(("name", "damage", "message"), BAD_FILES, ids=[row[0] for row in BAD_FILES])
def test_error_for_a_bad_array_or_sound_names_the_file(tmp_path, name, damage, message):
    (tmp_path / "a").mkdir()
    damage(tmp_path / "a" / name)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path)
    assert str(tmp_path / "a" / name) in str(caught.value)


def test_array_header_with_a_huge_shape_is_refused(tmp_path):
    write_npy(tmp_path / "a" / "a.npy", np.zeros(3))
    content = (tmp_path / "a" / "a.npy").read_bytes()
    (tmp_path / "a" / "a.npy").write_bytes(content.replace(b"(3,), }            ", b"(9999999999999,), }"))
    with pytest.raises(DataError, match=r"cannot be read as .npy"):
        read(tmp_path)


def test_sounds_of_different_sample_rates_are_refused(tmp_path):
    write_wav(tmp_path / "a" / "1.wav", b"1234", rate=16000)
    write_wav(tmp_path / "b" / "2.wav", b"1234", rate=44100)
    with pytest.raises(
        DataError, match=r"2.wav is a WAV at 44100 Hz of shape \(2, 1\), expected a WAV at 16000 Hz"
    ):
        read(tmp_path)


def test_folders_without_samples_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no samples; expected DIR/CLASS/FILE"):
        read(tmp_path)
    (tmp_path / "a.csv").write_text("x,y\n")
    with pytest.raises(DataError, match="add --window"):
        read(tmp_path)


def test_error_without_pillow_names_the_extra(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    write_grey_png(tmp_path / "a" / "a.png")
    with pytest.raises(DataError, match=r"needs Pillow; run pip install 'edgefl-tinyml\[images\]'"):
        read(tmp_path)


@settings(max_examples=300)
@given(
    st.sampled_from(["npy", "png", "wav"]),
    st.integers(0, 200),
    st.binary(min_size=1, max_size=4),
    st.booleans(),
)
def test_damaged_file_is_read_or_named_in_the_error(tmp_path_factory, kind, position, change, cut):
    pytest.importorskip("PIL")
    path = tmp_path_factory.mktemp("damaged") / "a" / f"1.{kind}"
    {
        "npy": lambda: write_npy(path, np.zeros((3, 2))),
        "png": lambda: write_grey_png(path),
        "wav": lambda: write_wav(path, b"12345678"),
    }[kind]()
    content = path.read_bytes()
    path.write_bytes(content[:position] + change + (b"" if cut else content[position + len(change) :]))
    try:
        read(path.parent.parent)
    except DataError as error:
        assert str(path) in str(error)


def test_samples_without_class_folders_have_no_labels(tmp_path):
    write_wav(tmp_path / "b.WAV", struct.pack("<2h", 0, 16384))
    write_wav(tmp_path / "a.wav", struct.pack("<2h", -32768, 0))
    (tmp_path / "notes.txt").write_text("recorded on Monday")
    arrays = read(tmp_path)
    assert "y" not in arrays
    assert arrays["x"].tolist() == [[[-1], [0]], [[0], [0.5]]]
    write_wav(tmp_path / "c.wav", struct.pack("<3h", 1, 2, 3))
    with pytest.raises(DataError, match=r"c.wav is a WAV .* all samples need the same shape"):
        read(tmp_path)


def test_samples_beside_class_folders_are_refused(tmp_path):
    write_npy(tmp_path / "cat" / "1.npy", np.float32([1, 2]))
    write_npy(tmp_path / "2.npy", np.float32([1, 2]))
    with pytest.raises(DataError, match=r"2.npy beside class folders such as cat, expected one of them"):
        read(tmp_path)


def test_files_are_read_in_natural_order(tmp_path) -> None:
    for number in (10, 9, 2, 100):
        write_npy(tmp_path / "a" / f"img{number}.npy", np.float32([number]))
        write_npy(tmp_path / "b" / f"{number}.npy", np.float32([number]))
        write_npy(tmp_path / "plain" / f"{number}.npy", np.float32([number]))
    assert read(tmp_path / "plain")["x"][:, 0].tolist() == [2, 9, 10, 100]
    shutil.rmtree(tmp_path / "plain")
    assert read(tmp_path)["x"][:, 0].tolist() == [2, 9, 10, 100] * 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_their_camera_says(tmp_path, orientation) -> None:
    """Each orientation of EXIF stores the same scene: a bright top left quarter above a grey one."""
    image = pytest.importorskip("PIL.Image")
    scene = np.zeros((16, 24), np.uint8)
    scene[:8, :12] = 240
    scene[8:, :12] = 120
    stored = {
        1: scene,
        2: scene[:, ::-1],
        3: scene[::-1, ::-1],
        4: scene[::-1],
        5: scene.T,
        6: np.rot90(scene, 1),
        7: np.rot90(scene, 2).T,
        8: np.rot90(scene, -1),
    }[orientation]
    picture = image.fromarray(np.ascontiguousarray(stored))
    exif = picture.getexif()
    exif[0x0112] = orientation
    (tmp_path / "a").mkdir()
    picture.save(tmp_path / "a" / "1.jpg", exif=exif, quality=100)
    picture.save(tmp_path / "a" / "2.png", exif=exif)
    for name in ("1.jpg", "2.png"):
        values = read_sample(tmp_path / "a" / name).values[..., 0]
        assert values.shape == (16, 24)
        assert np.abs(values.astype(int) - scene).max() <= 8


def test_pictures_of_two_sizes_are_resized(tmp_path) -> None:
    pytest.importorskip("PIL")
    write_png(tmp_path / "cat" / "1.png", [[10] * 4] * 2)
    write_png(tmp_path / "dog" / "1.png", [[0, 0, 200, 200]] * 4)
    with pytest.raises(DataError, match="all samples need the same shape, resize them with --resize HxW"):
        read(tmp_path)
    source = make_source(str(tmp_path), resize=(2, 2))
    arrays = read_source(source)
    assert arrays["x"].dtype == np.uint8
    assert arrays["x"][..., 0].tolist() == [[[10, 10], [10, 10]], [[0, 200], [0, 200]]]
    assert parse_source(source.to_json()) == source


def test_only_pictures_are_resized(tmp_path) -> None:
    write_npy(tmp_path / "a" / "1.npy", np.zeros((4, 4), np.float32))
    with pytest.raises(DataError, match=r"1.npy is no picture, so --resize cannot resize it"):
        read_source(make_source(str(tmp_path), resize=(2, 2)))
    for data in (str(tmp_path / "a.npz"), "module:function"):
        with pytest.raises(ConfigError, match="--resize is for a folder of pictures"):
            make_source(data, resize=(2, 2))
