"""CSV recordings: examples of windows, and an error with the line number for each bad row."""

import numpy as np
import pytest

from edgefl.base.errors import ConfigError, DataError
from edgefl.base.tasks.samples import SamplesConfig
from edgefl.data.sources import load_samples, make_source, read_source
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
    # All other numeric columns in the order of their names. A window of three rows begins at each row.
    arrays = read(tmp_path / "a.csv", window=3, step=1)
    np.testing.assert_array_equal(arrays["x"][1], [[2, 1.5, 11], [3, 2.5, 12], [4, 3.5, 13]])
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
    (
        "empty at first",
        "ax,ay,activity\n1,,a\n1,2,a\n",
        "first row: column 'ay' is empty, and '2' in .*line 3",
    ),
    ("short", "ax,activity\n1,a\n\n1\n", "line 4: 1 cells, expected 2"),
    ("no label", "ax,activity\n1,a\n1, \n", "line 3: no label in column 'activity'"),
    ("no such column", "ax,activty\n1,a\n", "no column 'activity' in the header .*did you mean 'activty'"),
    ("twice", "ax,ax,activity\n1,1,a\n", "names 'ax' twice"),
    ("no numbers", "ax,activity\nb,a\n", "no column with a number.*left out: ax .text"),
    ("nothing", "", "is empty, expected a first line that names the columns"),
    ("blank lines", "\n,,\n", "is empty"),
    ("title", "Logger 3\nax,activity\n1,a\n", "the first line must name the columns"),
    ("other separator", "ax|activity\n1|a\n", "separated by commas, semicolons or tabs"),
    ("label nan", "ax,activity\n1,a\n1,NaN\n", "line 3: no label in column 'activity' .'NaN'"),
    ("header only", "ax,activity\n", "has no row below its header"),
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
    assert "y" not in arrays and "class_names" not in arrays
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
        ({"label": "z", "channels": ("a", "z")}, "'z' is in --channels and in --label"),
        ({"channels": ("a", "z", "a")}, "--channels names 'a' twice"),
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


def notes(path, **options):
    return read(path, label="label", **options)["notes"].tolist()


NUMBERED = [f"{0.5 * i:.2f},{-i / 4},{'ab'[i % 2]}" for i in range(6)]


@pytest.mark.parametrize(
    ("header", "rows", "line"),
    [
        ("az,ax,label", NUMBERED, "channels ax, az"),
        (
            ",ax,ay,label",
            [f"{i},{row}" for i, row in enumerate(NUMBERED)],
            "left out: column 1 (no name, counts",
        ),
        (
            "Unnamed: 0,ax,ay,label",
            [f"{i},{row}" for i, row in enumerate(NUMBERED)],
            "left out: Unnamed: 0 (no",
        ),
        (
            "n,ax,ay,label",
            [f"{i},{row}" for i, row in enumerate(NUMBERED)],
            "channels ax, ay, n (counts the rows;",
        ),
        (
            ",ax,ay,label",
            [f"{7 * i % 4},{row}" for i, row in enumerate(NUMBERED)],
            "channels ax, ay; left out: column 1 (no name; give it one",
        ),
        (
            "Unnamed: 0,ax,ay,label",
            [f"{i % 3},{row}" for i, row in enumerate(NUMBERED)],
            "channels ax, ay; left out: Unnamed: 0 (no name;",
        ),
        (
            "t,ax,ay,label",
            [f"{20 * i % 190},{i % 2},{-i % 3},a" for i in range(12)],
            "channels ax, ay, t (grows like a time or a counter;",
        ),
        (
            "label_id,ax,ay,label",
            [f"{5 - i % 2},{row}" for i, row in enumerate(NUMBERED)],
            "channels ax, ay, label_id (has one value for each label;",
        ),
        (
            "t,ax,ay,label",
            [f"{1_700_000_000_123 + 20 * i},{row}" for i, row in enumerate(NUMBERED)],
            "t (time since",
        ),
        (
            "t,ax,ay,label",
            [f"{1_700_000_000.5 + i},{row}" for i, row in enumerate(NUMBERED)],
            "t (time since 1970)",
        ),
        (
            "note,ax,ay,label",
            [f"ok,{row}" for row in NUMBERED],
            "channels ax, ay; left out: note (text such as 'ok')",
        ),
        ("ax,ay,label,", [f"{row}," for row in NUMBERED], "channels ax, ay; left out: column 4 (empty)"),
        ("ch10,ch9,label", NUMBERED, "channels ch9, ch10"),
        (
            "ms,ax,label",
            [f"{400_000_000 + 20 * i},{i % 2},a" for i in range(12)],
            "ms (grows like a time or a counter;",
        ),
        ("left,ax,label", [f"{900 - i},{i % 2},a" for i in range(12)], "left (falls like a countdown;"),
        (
            "session,ax,label",
            [f"{i // 8},{i % 3},{'ab'[i // 8 % 2]}" for i in range(32)],
            "channels ax, session (has one label for each of its values;",
        ),
        (
            "t,ax,label",
            [f"{i if i < 3 else 1_764_000_000 + i},{i % 2},a" for i in range(12)],
            "channels ax; left out: t (time since 1970)",
        ),
        ("id,ax,label", [f"1_{i},{i % 2},a" for i in range(6)], "left out: id (text such as '1_0')"),
    ],
)
def test_one_line_says_which_columns_became_channels(tmp_path, header, rows, line) -> None:
    (tmp_path / "a.csv").write_text("\n".join([header, *rows]))
    (note,) = notes(tmp_path / "a.csv")
    assert line in note
    assert notes(tmp_path / "a.csv", channels=(header.split(",")[1],))[0].startswith("channels ")


def test_columns_are_judged_over_all_files(tmp_path) -> None:
    """Each file has one activity, and the first one is short."""
    for number, (name, rows) in enumerate((("a", 8), ("b", 30))):
        lines = [f"{20 * i},{i % 2},{number},{name}" for i in range(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["time,ax,activity_id,label", *lines]))
    (note,) = notes(tmp_path)
    assert "activity_id (has one value for each label;" in note
    assert "time (grows like a time or a counter;" in note


def test_files_with_other_rates_are_named(tmp_path) -> None:
    for name, step in (("a", 20), ("b", 10), ("c", 21)):
        lines = [f"{1_764_000_000_000 + step * i},{i % 2},a" for i in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["t,ax,label", *lines]))
    sentence = notes(tmp_path)[1]
    assert sentence.startswith("rows are 0.01 s apart in b.csv and 0.021 s in c.csv;")
    assert sentence.endswith("record at one rate")


def test_short_file_does_not_show_its_rate_with_a_clock_of_seconds(tmp_path) -> None:
    """Both files have 50 rows each second."""
    for name, rows in (("a", 2000), ("b", 20)):
        lines = [f"{1_764_000_000 + i // 50},{i % 2},a" for i in range(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["t,ax,label", *lines]))
    assert len(notes(tmp_path)) == 1


def test_column_is_judged_by_its_complete_rows(tmp_path) -> None:
    rows = [f"{'' if i == 19 else i // 10},{i % 3},{'ab'[i // 10 % 2]}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["session,ax,label", *rows]))
    assert "session (has one label for each of its values;" in notes(tmp_path / "a.csv", skip_empty=True)[0]


def test_files_have_the_same_channels_whatever_the_order_of_their_columns(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("az,ax,label\n1,2,a\n3,4,b\n")
    (tmp_path / "b.csv").write_text("label,ax,az\na,2,1\nb,4,3\n")
    one, two = (read(tmp_path / name, label="label") for name in ("a.csv", "b.csv"))
    assert np.array_equal(one["x"], two["x"])
    assert one["channels"].tolist() == two["channels"].tolist() == ["ax", "az"]
    assert (one["columns"].tolist(), two["columns"].tolist()) == (["az", "ax"], ["ax", "az"])


def test_channels_of_the_federation_decide_columns_and_order(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("az,ax,more,label\n1,2,9,a\n3,4,9,b\n")
    source = make_source(str(tmp_path / "a.csv"), window=2, label="label")
    arrays = read_source(source, SamplesConfig(channels=("az", "ax")))
    assert arrays["x"].tolist() == [[[1, 2], [3, 4]]]
    assert arrays["notes"].tolist() == ["channels az, ax; left out: more (not requested)"]
    with pytest.raises(DataError, match="no column 'ay' in the header"):
        read_source(source, SamplesConfig(channels=("ay", "ax")))
    own = make_source(str(tmp_path / "a.csv"), window=2, label="label", channels=("ax", "more"))
    with pytest.raises(DataError, match="--channels is ax, more, the federation has az, ax"):
        read_source(own, SamplesConfig(channels=("az", "ax")))


def test_targets_of_the_federation_decide_columns_and_order(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("volt,ax,watt\n1,2,9\n3,4,8\n")
    federation = SamplesConfig(targets=("watt", "volt"))
    for target in ((), ("volt", "watt")):
        arrays = read_source(make_source(str(tmp_path / "a.csv"), window=2, target=target), federation)
        assert arrays["target"].tolist() == [[8, 3]]
        assert (arrays["targets"].tolist(), arrays["channels"].tolist()) == (["watt", "volt"], ["ax"])
    own = make_source(str(tmp_path / "a.csv"), window=2, target=("volt",))
    with pytest.raises(
        DataError, match="--target is volt, the federation has watt, volt; leave --target out"
    ):
        read_source(own, federation)


@pytest.mark.parametrize(
    "text",
    [
        "ax;ay;label\n0,5;-1,25;a\n1000;2;b\n",
        "ax\tay\tlabel\n0,5\t-1,25\ta\n1000\t2\tb\n",
        "sep=;\nax;ay;label\n0.5;-1.25;a\n1000;2;b\n",
        'ax,ay,label\n"0,5","-1,25",a\n1000,2,b\n',
        '\n\nax, "ay", label\n0.5, "-1.25", a\n1000, "2", b\n',
        "sep=|\nax|ay|label\n0,5|-1,25|a\n1000|2|b\n",
        '"ax","ay","label"\r\n"0.5","-1.25","a"\r\n"1e3","2","b"\r\n',
        "ax;ay;label\n,5;-1,25;a\n1,000e3;2;b\n",
        "ax, g, x;ay, g;label\n0,5;-1,25;a\n1000,0;2,0;b\n",
        "ax, g, x;ay, g;label\n\n0,5;-1,25;a\n1000,0;2,0;b\n",
        "ax [m;s],ay,label\n0.5,-1.25,a;b\n1000,2,b\n",
    ],
)
def test_separators_and_decimal_commas_are_read(tmp_path, text) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert read(tmp_path / "a.csv", label="label")["x"].tolist() == [[[0.5, -1.25], [1000, 2]]]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "ax,ay,label\n--,1,a\n2,2,b\n",
            "line 3: column 'ax' is the number '2', but the text '--' in .*line 2",
        ),
        ("ax,ay,label\n1,1,a\n--,2,b\n", "line 3: ax is '--', expected a finite number"),
        (
            'ax,ay,label\n"1,234",1,a\n"2,345",2,b\n',
            "ax have a comma in numbers such as '1,234', which may be",
        ),
        ("ax;ay;label\n0,5;1.5;a\n1;2;b\n", "ax have a decimal comma .'0,5'. and ay a decimal point .'1.5'."),
        ("sep=;\nax;ay;label\n1;1;a\nx;2;b\n", "line 4: ax is 'x'"),
        ("\n\nax,ay,label\n1,1,a\nx,2,b\n", "line 5: ax is 'x'"),
        ("ax,ay,label\n0.5g,1,a\n1.5g,2,b\n", "line 2: column 'ax' is '0.5g', expected a number without a"),
        ("ax,ay,label\n12 %,1,a\n1,2,b\n", "line 2: column 'ax' is '12 %'"),
        ("ax,ay,label\n9.81m/s²,1,a\n1,2,b\n", "line 2: column 'ax' is '9.81m/s²'"),
        ("ax,ay,label\n21.5 °C,1,a\n1,2,b\n", "line 2: column 'ax' is '21.5 °C'"),
        ("ax,ay,label\n1'234,1,a\n1,2,b\n", "line 2: column 'ax' is \"1'234\""),
        ("ax;ay;label\n1.234,5;1;a\n1;2;b\n", "line 2: column 'ax' is '1.234,5'"),
        ("ax,ay,label\n\u22125,1,a\n1,2,b\n", "line 2: column 'ax' is '.5'"),
        ("0.1,0.2,walk\n1,1,walk\n", "the first line has the number '0.1', expected names of columns"),
        ("512,498,label\n1,1,a\n", "the first line has the number '512'"),
        ("570,label\n571,a\n", "the first line has the number '570'"),
        ("0,1,5,label\n1,1,1,a\n", "the first line has the number '0'"),
        ("-0.4,0.1,0.2,0.9,label\n1,1,1,1,a\n", "the first line has the number '-0.4'"),
        ("0.1,0.2,0.5,0.9,label\n1,1,1,1,a\n", "the first line has the number '0.1'"),
        ("ax,ay,label\n1,1,a\n,2,b\n", "line 3: ax is '', .*--skip-empty"),
    ],
)
def test_cells_with_two_meanings_are_refused(tmp_path, text, error) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=error):
        read(tmp_path / "a.csv", label="label")


@pytest.mark.parametrize(
    "header",
    [
        "0,1,label",
        "1,2,3,label",
        "415,445,480,515,label",
        "410,435.5,461,486.5,label",
        "31.5,63,125,250,500,1000,label",
    ],
)
def test_positions_and_growing_numbers_are_names_of_columns(tmp_path, header) -> None:
    count = header.count(",")
    (tmp_path / "a.csv").write_text(f"{header}\n" + f"{','.join(['1'] * count)},a\n" * 2)
    assert read(tmp_path / "a.csv", label="label")["channels"].tolist() == header.split(",")[:-1]


def write_times(path, cells) -> list[str]:
    path.write_text("\n".join(["t,ax,label", *(f"{cell},{i % 2},a" for i, cell in enumerate(cells))]))
    return notes(path)[1:]


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (
            [1_764_000_000_000 + 20 * i + (60_000 if i > 14 else 0) for i in range(30)],
            "1 pauses of up to 60 s;",
        ),
        ([1_764_000_000 + i // 5 + (9 if i > 14 else 0) for i in range(30)], "1 pauses of up to 10 s;"),
        ([f"2026-11-28T{12 + i // 15}:00:{i:02}+01:00" for i in range(30)], "1 pauses of up to 3.6e+03 s;"),
        ([1_764_000_000 + 7 * i % 30 for i in range(30)], "rows that are earlier than the row above;"),
        ([1_764_000_000_000 + 20 * i + 7 * i % 15 for i in range(30)], None),
        ([1_764_000_000 + i // 5 for i in range(30)], None),
        (["2026-11-28"] * 30, None),
        ([f"12:00:{2 * i:02}" for i in range(30)], None),
        ([1_764_000_000, 1_764_000_001, 1_764_003_600], None),
    ],
)
def test_times_with_pauses_are_named(tmp_path, cells, sentence) -> None:
    """Half a minute with one reading each 20 ms, five each second, or one each second."""
    sentences = write_times(tmp_path / "a.csv", cells)
    assert not sentences if sentence is None else sentence in sentences[0]


def test_usual_time_between_rows_is_measured_whatever_channels_are_read(tmp_path) -> None:
    write_times(tmp_path / "a.csv", [1_764_000_000_000 + 20 * i + (999 if i > 9 else 0) for i in range(30)])
    for channels in ((), ("ax",)):
        arrays = read(tmp_path / "a.csv", label="label", channels=channels)
        assert float(arrays["interval"]) == pytest.approx(0.02)


@pytest.mark.parametrize("cell", ["$0.5", "(1.5)", "<0.9", "0.5 1.5 2.5", '"[0.5, 1.5]"'])
def test_text_with_a_decimal_number_is_left_out_with_a_warning(tmp_path, cell) -> None:
    (tmp_path / "a.csv").write_text(f"ax,ay,label\n{cell},1,a\n{cell},1,a\n")
    (note,) = notes(tmp_path / "a.csv")
    assert "left out: ax (text such as" in note and "which is no number" in note


def test_second_byte_order_mark_is_no_part_of_a_name(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("\ufeff\ufeffax,label\n1,a\n2,a\n")
    assert read(tmp_path / "a.csv", label="label")["channels"].tolist() == ["ax"]


def test_dates_are_left_out_as_text(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("day,at,ax,label\n28.11.2026,12:00:01,1,a\n29.11.2026,12:00:02,1,a\n")
    (note,) = notes(tmp_path / "a.csv")
    assert note == "channels ax; left out: day (text such as '28.11.2026'), at (text such as '12:00:01')"


def test_files_of_a_folder_that_are_not_read_are_named(tmp_path) -> None:
    for name in ("a.csv", "b.CSV", "c.tsv"):
        (tmp_path / name).write_text("ax,label\n1,a\n2,a\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "classes.txt").write_text("a\n")
    assert len(read(tmp_path, label="label")["x"]) == 2
    assert notes(tmp_path)[1] == "files and folders that are no .csv file are left out: c.tsv, more"
    assert len(read(tmp_path / "b.CSV", label="label")["x"]) == 1


def test_text_of_the_first_file_is_no_number_in_another(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("note,ax,label\nok,1,a\nok,2,a\n")
    (tmp_path / "b.csv").write_text("note,ax,label\n3,1,a\nok,2,a\n")
    with pytest.raises(
        DataError, match=r"b.csv, line 2: column 'note' is the number '3', but the text 'ok' in"
    ):
        read(tmp_path, label="label")


def test_windows_with_an_empty_cell_are_left_out_and_counted(tmp_path) -> None:
    rows = ["1,1,a", "2,,a", "3,3,a", "4,4,a", "5,5,", "6,6,b", "7,NaN,b", "8,8,b", "9,9,b", "10,10,b"]
    (tmp_path / "a.csv").write_text("\n".join(["ax,ay,label", *rows]))
    arrays = read(tmp_path / "a.csv", label="label", skip_empty=True)
    assert arrays["x"].tolist() == [[[3, 3], [4, 4]], [[9, 9], [10, 10]]]
    assert arrays["first_row"].tolist() == [2, 8]
    assert arrays["y"].tolist() == [0, 1]
    assert arrays["notes"].tolist()[1] == "3 of 5 windows have an empty cell and are left out"
    with pytest.raises(DataError, match="each of the 2 windows has an empty cell"):
        read(tmp_path / "a.csv", label="label", window=5, skip_empty=True)


def test_column_that_is_empty_at_first_is_read_with_skip_empty(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("ax,ay,label\n1,,a\n2,,a\n3,3,a\n4,4,a\n")
    assert read(tmp_path / "a.csv", label="label", skip_empty=True)["x"].tolist() == [[[3, 3], [4, 4]]]
    with pytest.raises(DataError, match=r"first row: column 'ay' is empty, and '3' in .*line 4"):
        read(tmp_path / "a.csv", label="label")


@pytest.mark.parametrize("form", ["{}", "{}.0", "{}e+00"])
def test_listed_numbers_are_read_in_any_form(tmp_path, form) -> None:
    (tmp_path / "classes.txt").write_text("2\n1\n")
    (tmp_path / "a.csv").write_text(f"ax,label\n1,{form.format(1)}\n2,{form.format(2)}\n")
    assert read(tmp_path / "a.csv", label="label", window=1)["y"].tolist() == [1, 0]


@pytest.mark.parametrize("form", ["{}", "{}.0", "{}.", "{},00", "+{}", "{}.000e+00", "{}e0"])
def test_whole_numbers_in_any_form_are_class_numbers(tmp_path, form) -> None:
    rows = [f"{i};{form.format(i)}" for i in range(11)]
    (tmp_path / "a.csv").write_text("\n".join(["ax;label", *rows]))
    arrays = read(tmp_path / "a.csv", label="label", window=1)
    assert arrays["y"].tolist() == list(range(11))
    assert "class_names" not in arrays


def test_labels_with_separated_thousands_are_names(tmp_path) -> None:
    (tmp_path / "a.csv").write_text('ax,label\n1,"1,000"\n2,500\n')
    assert read(tmp_path / "a.csv", label="label", window=1)["class_names"].tolist() == ["1,000", "500"]


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        (["1.5", "2"], "the label '1.5' is a number, but no class"),
        (["1", "01"], "contain the same number twice"),
    ],
)
def test_labels_that_are_no_classes_are_refused(tmp_path, labels, error) -> None:
    (tmp_path / "a.csv").write_text(
        "\n".join(["ax,label", *(f"{i},{name}" for i, name in enumerate(labels))])
    )
    with pytest.raises(DataError, match=error):
        read(tmp_path / "a.csv", label="label", window=1)
