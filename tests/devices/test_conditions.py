"""When a device accepts tasks: conditions with known values, as properties, and from files under a root."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.availability import (
    CHECK_INTERVAL_S,
    Availability,
    is_paused,
    pause_device,
    resume_device,
)
from devices.conditions import (
    Conditions,
    HostReadings,
    TimeWindow,
    estimate_process_load,
    find_unmet_condition,
    is_on_mains,
    is_within,
    parse_window,
)
from devices.host_sensors import PowerSupply, read_load_average, read_power_supplies, read_temperature_c
from edgefl.base.errors import ConfigError, StateError

NIGHT = TimeWindow(22 * 60, 6 * 60)
NOON = 12 * 60
MAINS = PowerSupply(kind="Mains", online=True)
BATTERY = PowerSupply(kind="Battery", online=False, status="Discharging")
MINUTES = st.integers(0, 24 * 60 - 1)


def test_time_window_within_day_and_across_midnight():
    assert parse_window("22:00-06:00") == NIGHT
    assert str(parse_window("9:05-17:30")) == "09:05-17:30"
    assert [
        is_within(NIGHT, minute)
        for minute in (22 * 60 - 1, 22 * 60, 23 * 60 + 59, 0, 6 * 60 - 1, 6 * 60, NOON)
    ] == [
        False,
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    day = parse_window("09:00-17:00")
    assert [is_within(day, minute) for minute in (539, 540, 1019, 1020)] == [False, True, True, False]


@given(MINUTES, MINUTES, MINUTES)
def test_time_window_and_its_complement_cover_the_day(start, end, minute):
    if start != end:
        assert is_within(TimeWindow(start, end), minute) != is_within(TimeWindow(end, start), minute)
        assert parse_window(str(TimeWindow(start, end))) == TimeWindow(start, end)


@pytest.mark.parametrize(
    "text",
    ["", "22:00", "22-6", "24:00-06:00", "22:60-06:00", "22:00-06:00 ", "22:00-06:00-08:00", "-1:00-06:00"],
)
def test_invalid_time_window_is_rejected(text):
    with pytest.raises(ConfigError, match=r"expected two times of day such as 22:00-06:00"):
        parse_window(text)
    with pytest.raises(ConfigError, match="both times are the same"):
        parse_window("07:00-7:00")


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ([], True),
        ([MAINS], True),
        ([BATTERY], False),
        ([PowerSupply(kind="Battery", online=False, status="Charging")], True),
        ([PowerSupply(kind="Battery", online=False, status="Full")], True),
        ([PowerSupply(kind="Mains", online=False), BATTERY], False),
        ([MAINS, BATTERY], True),
        ([PowerSupply(kind="USB", online=True), BATTERY], True),
        ([PowerSupply(kind="Mains", online=False)], True),  # the PoE hat of a board that USB feeds
        ([PowerSupply(kind="Battery", online=False, status="Discharging", scope="Device")], True),  # a mouse
        ([PowerSupply(kind="USB", online=True, status="", scope="Device"), BATTERY], False),
    ],
)
def test_mains_power_is_detected(supplies, expected):
    assert is_on_mains(supplies) is expected


def test_unmet_conditions_are_reported_in_order():
    everything = Conditions(idle=True, mains=True, between=NIGHT)
    assert find_unmet_condition(everything, HostReadings(0.0, True, 0)) == ""
    assert find_unmet_condition(everything, HostReadings(9.0, False, NOON)) == "outside 22:00-06:00"
    assert find_unmet_condition(everything, HostReadings(9.0, False, 0)) == "on battery"
    assert find_unmet_condition(everything, HostReadings(0.5, True, 0)) == "busy"
    assert find_unmet_condition(Conditions(), HostReadings(9.0, False, NOON)) == ""


@given(st.floats(0, 100), st.booleans(), MINUTES, st.booleans(), st.booleans())
def test_fewer_conditions_never_pause_an_available_device(load, mains, minute, idle, wants_mains):
    readings = HostReadings(load, mains, minute)
    if find_unmet_condition(Conditions(True, True, NIGHT), readings) == "":
        assert find_unmet_condition(Conditions(idle, wants_mains), readings) == ""


def test_process_load_matches_the_kernels_average():
    """Four threads run for ten minutes. The estimate agrees with the kernel's load average, and both decay at
    the same rate.
    """
    process_load = estimate_process_load(0.0, cpu_s=4 * 600.0, elapsed_s=600.0)
    assert process_load == pytest.approx(4.0, abs=1e-3)
    assert estimate_process_load(process_load, 0.0, 60.0) == pytest.approx(4 / math.e, abs=1e-3)
    assert estimate_process_load(1.5, 3.0, 0.0) == 1.5


@given(st.floats(0, 64), st.lists(st.tuples(st.floats(0, 8), st.floats(0.1, 500)), max_size=6))
def test_process_load_lies_between_previous_load_and_current_rate(initial_load, samples):
    process_load = initial_load
    for rate, elapsed in samples:
        low, high = sorted((process_load, rate))
        process_load = estimate_process_load(process_load, rate * elapsed, elapsed)
        assert low - 1e-9 <= process_load <= high + 1e-9


def write_files(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_kernel_files_are_read(tmp_path):
    assert (read_load_average(tmp_path), read_power_supplies(tmp_path)) == (0.0, ())
    assert math.isnan(read_temperature_c(tmp_path))
    thermal = "sys/class/thermal/thermal_zone"
    power = "sys/class/power_supply"
    write_files(
        tmp_path,
        {
            "proc/loadavg": "1.25 0.80 0.60 2/345 6789\n",
            f"{thermal}0/type": "cpu-thermal\n",
            f"{thermal}0/temp": "48312\n",
            f"{thermal}1/type": "PMIC-Die\n",
            f"{thermal}1/temp": "100000\n",  # a constant on a Jetson Nano
            f"{thermal}2/type": "CPU-therm\n",
            f"{thermal}2/temp": "-250000\n",
            f"{thermal}3/type": "soc_thermal\n",
            f"{thermal}3/temp": "hot\n",
            f"{power}/AC/type": "Mains\n",
            f"{power}/AC/online": "0\n",
            f"{power}/BAT0/type": "Battery\n",
            f"{power}/BAT0/status": "Discharging\n",
        },
    )
    assert read_load_average(tmp_path) == 1.25
    assert read_power_supplies(tmp_path) == (PowerSupply(kind="Mains", online=False), BATTERY)
    assert read_temperature_c(tmp_path) == 48.312


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def test_pause_of_the_operator_is_noticed_at_the_next_check(tmp_path):
    clock = Clock()
    available = Availability(Conditions(), tmp_path, 4, root=tmp_path, clock=clock)
    assert available.find_pause_reason() == ""
    pause_device(tmp_path)
    assert is_paused(tmp_path)
    assert available.find_pause_reason() == ""  # the interval between checks has not passed
    clock.now += CHECK_INTERVAL_S
    assert available.find_pause_reason() == "operator"
    resume_device(tmp_path)
    assert available.find_pause_reason(refresh=True) == ""
    resume_device(tmp_path)
    pause_device(tmp_path)
    again = Availability(Conditions(), tmp_path, 4, root=tmp_path, clock=clock)
    assert again.find_pause_reason() == "operator"


def test_availability_reads_sensors_under_root(tmp_path):
    """Others keep two of four cores busy: 0.5 per core is not idle, half of that is."""
    clock = Clock()
    available = Availability(
        Conditions(idle=True, mains=True), tmp_path / "state", 4, root=tmp_path, clock=clock
    )
    write_files(tmp_path, {"proc/loadavg": "2.1 0 0 1/1 1"})
    clock.now += 1e6  # after this time the load of this process has no effect
    assert available.find_pause_reason() == "busy"
    assert available.find_pause_reason(refresh=True, is_computing=True) == "", "the load may be its own"
    assert available.find_pause_reason(refresh=True) == "busy"
    write_files(tmp_path, {"proc/loadavg": "1.0 0 0 1/1 1"})
    assert available.find_pause_reason(refresh=True) == ""
    write_files(
        tmp_path,
        {"sys/class/power_supply/BAT0/type": "Battery", "sys/class/power_supply/BAT0/status": "Discharging"},
    )
    clock.now += CHECK_INTERVAL_S
    assert available.find_pause_reason() == "on battery"


def test_pausing_without_state_directory_is_an_error(tmp_path):
    for change in (pause_device, resume_device):
        with pytest.raises(StateError, match="pass the --state"):
            change(tmp_path / "none")
