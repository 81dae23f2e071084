"""CSV recordings: examples of windows, and an error with the line number for each bad row."""

import numpy as np
import pytest

from edgefl.data.sources import load_samples, make_source, read_source
from edgefl.errors import ConfigError, DataError
from firmware_export.commands.export import export

WALK = "t,ax,board,activity,ay\n10,1,pi,walk,0.5\n11,2,pi,walk,1.5\n12,3,pi,run,2.5\n13,4,pi,run,3.5\n14,5,pi,run,4.5\n"  # noqa: E501


def read(path, window=2, label="activity", **options):
    return read_source(make_source(str(path), window=window, label=label, **options))


def test_file_is_cut_into_labelled_windows(tmp_path):
    (tmp_path / "a.csv").write_text(WALK)
    arrays = read(tmp_path / "a.csv", channels=("ay", "ax"))
    np.testing.assert_array_equal(arrays["x"], np.float32([[[0.5, 1], [1.5, 2]], [[2.5, 3], [3.5, 4]]]))
    assert (arrays["x"].dtype, arrays["y"].tolist(), arrays["class_names"].tolist()) == (
        np.float32,
        [1, 0],
        ["run", "walk"],
    )
    # All other numeric columns in the order of the header. A window of three rows begins at each row.
    arrays = read(tmp_path / "a.csv", window=3, step=1)
    np.testing.assert_array_equal(arrays["x"][1], [[11, 2, 1.5], [12, 3, 2.5], [13, 4, 3.5]])
    assert arrays["y"].tolist() == [1, 0, 0]


def test_windows_never_span_files_and_columns_match_by_name(tmp_path):
    (tmp_path / "b.csv").write_text("activity,ay,ax\n" + "".join(f"0,{i},{-i}\n" for i in range(3)))
    (tmp_path / "a.csv").write_text("ax,ay,activity\n" + "".join(f"{i},{i * 10},3\n" for i in range(5)))
    (tmp_path / "c.csv").write_text("ax,ay,activity\n7,7,3\n")
    arrays = read(tmp_path)
    np.testing.assert_array_equal(arrays["x"], [[[0, 0], [1, 10]], [[2, 20], [3, 30]], [[0, 0], [-1, 1]]])
    assert arrays["y"].tolist() == [3, 3, 0]
    assert "class_names" not in arrays


def test_classes_txt_beside_the_file_numbers_the_classes(tmp_path):
    (tmp_path / "a.csv").write_text(WALK)
    (tmp_path / "classes.txt").write_text("stand\nwalk\nrun\n")
    shard = load_samples(
        make_source(str(tmp_path / "a.csv"), window=1, label="activity"), num_classes=3
    ).shard
    assert sorted(np.r_[shard.y_train, shard.y_test].tolist()) == [1, 1, 2, 2, 2]


def test_spreadsheet_exports_are_read(tmp_path):
    (tmp_path / "a.csv").write_bytes('﻿"ax", activity\r\n1,a\r\n\r\n"2","a"\r\n'.encode())
    np.testing.assert_array_equal(read(tmp_path / "a.csv")["x"], [[[1], [2]]])


BAD = [
    ("not a number", "ax,activity\n1,a\n2,a\nx,a\n", "line 4: ax is 'x', expected a finite number"),
    ("not finite", "ax,activity\n1,a\nnan,a\n", "line 3: ax is 'nan'"),
    ("too large", "ax,activity\n1,a\n1e39,a\n", "line 3: ax is '1e39'"),
    ("empty later", "ax,activity\n1,a\n,a\n", "line 3: ax is ''"),
    ("empty at first", "ax,ay,activity\n1,,a\n", "line 2: column 'ay' is empty"),
    ("short", "ax,activity\n1,a\n\n1\n", "line 4: 1 cells, expected 2"),
    ("no label", "ax,activity\n1,a\n1, \n", "line 3: no label in column 'activity'"),
    ("no such column", "ax,activty\n1,a\n", "no column 'activity' in the header .*did you mean 'activty'"),
    ("twice", "ax,ax,activity\n1,1,a\n", "names 'ax' twice"),
    ("no numbers", "ax,activity\nb,a\n", "line 2: no column with a number"),
    ("nothing", "", "no column 'activity'"),
    ("header only", "ax,activity\n", "the longest has 0 rows, expected 2"),
    ("short recording", "ax,activity\n1,a\n", "the longest has 1 rows, expected 2"),
    ("quotes", 'ax,activity\n"1,a\n', "cannot be read as CSV"),
    ("bytes", b"\x89PNG\xff\n", "cannot be read as CSV"),
]


@pytest.mark.parametrize(("text", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_error_for_a_bad_row_names_file_and_line(tmp_path, text, message):
    path = tmp_path / "a.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_missing_files_and_missing_options_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"contains no .csv"):
        read(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="--window ROWS and --label COLUMN, or --target"):
        make_source(str(tmp_path / "a.csv"))
    with pytest.raises(ConfigError, match="--window ROWS and --label"):
        make_source(str(tmp_path), label="y")
    with pytest.raises(ConfigError, match=r"are for a .csv file"):
        make_source(str(tmp_path / "a.npz"), window=3, label="y")


@pytest.mark.parametrize("files", [1, 2, 4])
def test_rows_are_never_on_both_sides(tmp_path, files):
    """Values count the rows, so that a window shows its rows. Windows overlap by three quarters."""
    for number in range(files):
        rows = "\n".join(f"{1000 * number + row},{'walk' if row < 60 else 'run'}" for row in range(120))
        (tmp_path / f"{number}.csv").write_text(f"value,activity\n{rows}\n")
    shard = load_samples(make_source(str(tmp_path), window=8, step=2, label="activity"), num_classes=2).shard
    trained, tested = (set(x.ravel().astype(int).tolist()) for x in (shard.x_train, shard.x_test))
    assert trained and tested and not trained & tested
    assert set(shard.y_train.tolist()) == set(shard.y_test.tolist()) == {0, 1}
    if files == 4:  # whole files
        assert len(tested) == 120 and len(trained) == 360


POWER = "ax,ay,watt,volt\n" + "".join(f"{i},{-i},{i / 4},{2 * i}\n" for i in range(7))


def test_windows_without_a_label_column_have_no_labels(tmp_path):
    (tmp_path / "a.csv").write_text(POWER)
    (tmp_path / "b.csv").write_text(POWER)
    arrays = read(tmp_path, window=3, label="")
    assert sorted(arrays) == ["first_row", "recording", "x"]
    assert arrays["x"].shape == (4, 3, 4)
    assert (arrays["recording"].tolist(), arrays["first_row"].tolist()) == ([0, 0, 1, 1], [0, 3, 0, 3])


def test_target_of_a_window_is_the_target_of_its_last_row(tmp_path):
    (tmp_path / "a.csv").write_text(POWER)
    arrays = read(tmp_path, window=3, step=2, label="", target=("watt",))
    assert "y" not in arrays
    assert arrays["x"].shape == (3, 3, 3)  # ax, ay and volt
    assert arrays["target"].tolist() == [[0.5], [1.0], [1.5]]
    both = read(tmp_path, window=3, step=2, label="", target=("volt", "watt"), channels=("ax",))
    np.testing.assert_array_equal(both["x"][1], [[2], [3], [4]])
    assert (both["target"].dtype, both["target"].tolist()) == (np.float32, [[4, 0.5], [8, 1], [12, 1.5]])


def test_whole_numbers_in_a_target_column_are_targets_and_no_classes(tmp_path):
    (tmp_path / "a.csv").write_text(POWER)
    shard = load_samples(
        make_source(str(tmp_path), window=1, target=("volt",)), num_classes=1, any_task=True
    ).shard
    assert shard.has_labels and shard.target_train is not None and shard.target_test is not None
    values = np.r_[shard.target_train, shard.target_test].ravel()
    assert sorted(values.tolist()) == [0, 2, 4, 6, 8, 10, 12]
    np.testing.assert_array_equal(shard.target_train.ravel(), 2 * shard.x_train[:, 0, 0])


@pytest.mark.parametrize("cell", ["nan", "", "inf", "warm"])
def test_target_that_is_not_a_finite_number_is_refused(tmp_path, cell):
    (tmp_path / "a.csv").write_text(f"ax,watt\n1,2\n2,{cell}\n")
    with pytest.raises(DataError, match=r"a.csv, line 3: watt is '.*', expected a finite number"):
        read(tmp_path, label="", target=("watt",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "y", "target": ("z",)}, "--label is 'y' and --target is 'z', expected at most one"),
        ({"target": ("z", "z")}, "--target names 'z' twice"),
        ({"target": ("z",), "channels": ("a", "z")}, "'z' is in --channels and in --target"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        make_source(str(tmp_path / "a.csv"), window=3, **options)


def test_missing_target_column_is_named(tmp_path):
    (tmp_path / "a.csv").write_text(POWER)
    with pytest.raises(DataError, match=r"no column 'wat' in the header .*did you mean 'watt'"):
        read(tmp_path, label="", target=("wat",))


def test_export_names_the_target_column_apart_from_its_own_target():
    options = {name: parameter.name for parameter in export.params for name in parameter.opts}
    assert (options["--target"], options["--target-column"]) == ("target", "target_columns")
