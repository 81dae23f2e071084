"""Firmware of a handwritten model, compiled for each core, run in QEMU and compared with numpy."""

import ctypes
import re
import subprocess

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgefl.base.errors import ConfigError, ExportError
from firmware_export.firmware.firmware import (
    FirmwareTooLargeError,
    build_and_run,
    build_firmware,
    explain_not_runnable,
    profile_firmware,
    run_firmware,
)
from firmware_export.firmware.project import read_project_template
from firmware_export.firmware.targets import COMPILER_OPTIONS, TARGETS, find_target, parse_bytes

INPUTS = np.random.default_rng(1).integers(-128, 128, (20, 3)).astype(np.int8)


def get_runnable_target(name):
    target = TARGETS[name]
    if reason := explain_not_runnable(target):
        pytest.skip(reason)
    return target


@pytest.mark.parametrize("name", list(TARGETS))
def test_every_target_gives_the_expected_outputs(name, tmp_path, hand) -> None:
    target = get_runnable_target(name)
    built, ran = build_and_run(hand.FILES, target, INPUTS, tmp_path)
    np.testing.assert_array_equal(ran.outputs, hand.compute_outputs(INPUTS))
    assert built.model.bss == 13 and built.model.data == 0 and built.model.flash > 6
    assert built.image.text > built.model.text
    if not target.is_host:
        instructions = ran.ticks.mean() * float(target.tick)
        assert 40 < instructions < 400, "six products and two divisions"
        assert 0 < ran.stack < 1000


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "host"])
def test_a_second_run_counts_the_same_instructions(name, tmp_path, hand) -> None:
    built = build_firmware(hand.FILES, get_runnable_target(name), tmp_path)
    first, *others = (run_firmware(built, INPUTS, tmp_path).ticks.tolist() for _ in range(6))
    assert others == [first] * 5


def test_profile_divides_instructions_among_layers(tmp_path, hand) -> None:
    target = get_runnable_target("cortex-m3")
    built, ran = build_and_run(hand.FILES, target, INPUTS, tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.o")}
    layers = profile_firmware(built, INPUTS, tmp_path)
    assert set(layers) == {0, 1}
    total = float(ran.ticks.mean() * target.tick)
    assert 0.2 * total < sum(layers.values()) < total + 2 * target.tick
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.o")}
    assert {name for name in after if after[name] != before[name]} == {"model.o", "main.o"}
    assert run_firmware(built, INPUTS, tmp_path).ticks.tolist() == ran.ticks.tolist(), "not the profile"


def test_the_counter_continues_when_systick_wraps(tmp_path, hand) -> None:
    """The 24 bits of SysTick count 671 M instructions. One inference here has 720 M."""
    turns = 120_000_000
    wait = f"    for (volatile int32_t i = 0; i < {turns}; i++) {{\n    }}\n    for (int o"
    slow = hand.FILES["model.c"].replace("    for (int o", wait, 1)
    _, ran = build_and_run(
        {**hand.FILES, "model.c": slow}, get_runnable_target("cortex-m3"), INPUTS[:1], tmp_path
    )
    assert 1 << 24 < ran.ticks[0] < 1 << 25
    assert (ran.ticks[0] * 40 / turns) == pytest.approx(6, abs=1e-3), "the loop's instructions"


@pytest.mark.parametrize("name", ["cortex-m3", "rv32imc", "lx106"])
def test_a_core_that_faults_is_an_error(name, tmp_path, hand) -> None:
    target = get_runnable_target(name)
    wild = hand.FILES["model.c"].replace(
        "    for (int o", "    *(volatile int *)0xF0000001u = 1;\n    for (int o", 1
    )
    with pytest.raises(ExportError, match="fault"):
        build_and_run({**hand.FILES, "model.c": wild}, target, INPUTS, tmp_path)


def test_model_too_large_for_the_target_has_a_specific_error(tmp_path, hand) -> None:
    large = hand.FILES["model.c"].replace("static int32_t sums[2]", "static int32_t sums[5000]")
    with pytest.raises(
        FirmwareTooLargeError, match=r"less than 2 KB|bytes more than the 16,384 of RAM of QEMU's microbit"
    ):
        build_firmware({**hand.FILES, "model.c": large}, get_runnable_target("cortex-m0"), tmp_path)


def test_endless_program_is_stopped_at_the_deadline(tmp_path, hand) -> None:
    endless = hand.FILES["model.c"].replace(
        "    for (int o", "    while (input[0] != 0) {\n        sums[0]++;\n    }\n    for (int o", 1
    )
    built = build_firmware(
        {**hand.FILES, "model.c": endless.replace("static int32_t", "static volatile int32_t")},
        get_runnable_target("cortex-m4"),
        tmp_path,
    )
    with pytest.raises(ExportError, match="did not finish within 2 s"):
        run_firmware(built, INPUTS, tmp_path, deadline_s=2)


def test_compiler_errors_are_quoted(tmp_path, hand) -> None:
    with pytest.raises(ExportError, match="unused variable"):
        build_firmware(
            {**hand.FILES, "model.c": hand.FILES["model.c"].replace("{\n", "{\n    int unused;\n", 1)},
            get_runnable_target("cortex-m3"),
            tmp_path,
        )


def test_error_for_a_missing_compiler_names_its_package(tmp_path, monkeypatch, hand) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ExportError, match="arm-none-eabi-gcc is not installed; apt-get install gcc-arm-none-eabi"
    ):
        build_firmware(hand.FILES, TARGETS["cortex-m3"], tmp_path)
    assert "qemu-system-arm" in explain_not_runnable(TARGETS["cortex-m3"])
    assert "cc is not installed; apt-get install gcc" in explain_not_runnable(TARGETS["host"])


def test_error_for_an_unknown_target_suggests_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cortex-m4'"):
        find_target("cortex-m4f")
    with pytest.raises(ConfigError, match="expected one of cortex-m0"):
        find_target("avr")


def test_error_for_a_missing_xtensa_compiler_names_its_package(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert explain_not_runnable(TARGETS["lx106"]) == (
        "xtensa-lx106-elf-gcc and qemu-system-xtensa are not installed; apt-get install gcc-xtensa-lx106 "
        "qemu-system-misc"
    )


WORDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory) -> ctypes.CDLL:
    """The functions of libgcc that startup.c has for Xtensa, compiled for this computer."""
    get_runnable_target("host")
    folder = tmp_path_factory.mktemp("runtime")
    text = read_project_template("startup.c")
    source = "#include <stdint.h>\n" + text[text.rindex("#ifdef __xtensa__") :]
    (folder / "runtime.c").write_text(re.sub(r"\b__(u?(?:mul|div|mod)[sd]i3)", r"test_\1", source))
    command = ["cc", "-D__xtensa__", *COMPILER_OPTIONS, "-shared", "-fPIC", "runtime.c", "-o", "runtime.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=100)
    library = ctypes.CDLL(str(folder / "runtime.so"))
    library.test_muldi3.restype = library.test_udivdi3.restype = ctypes.c_uint64
    library.test_udivsi3.restype = library.test_umodsi3.restype = ctypes.c_uint32
    return library


@given(a=st.integers(0, 2**64 - 1), b=st.integers(0, 2**64 - 1))
@example(a=2**64 - 1, b=2**64 - 1)
@example(a=0xFFFFFFFF, b=0xFFFFFFFF)
def test_product_for_xtensa_has_64_bits(runtime, a, b) -> None:
    assert runtime.test_muldi3(ctypes.c_uint64(a), ctypes.c_uint64(b)) == a * b % 2**64


@given(
    a=st.integers(0, 2**64 - 1),
    b=st.one_of(st.integers(1, 2**64 - 1), st.integers(1, 2**32), st.integers(1, 9)),
)
@example(a=2**64 - 1, b=1)
@example(a=2**64 - 1, b=2**63 + 1)
@example(a=2**64 - 2, b=2**64 - 1)
def test_quotient_for_xtensa_has_64_bits(runtime, a, b) -> None:
    assert runtime.test_udivdi3(ctypes.c_uint64(a), ctypes.c_uint64(b)) == a // b


@given(a=WORDS, b=st.one_of(WORDS, st.integers(0, 40)).filter(bool))
@example(a=2**32 - 1, b=1)
@example(a=2**31, b=2**32 - 1)
@example(a=7, b=7)
def test_divisions_for_xtensa_round_towards_zero(runtime, a, b) -> None:
    assert runtime.test_udivsi3(ctypes.c_uint32(a), ctypes.c_uint32(b)) == a // b
    assert runtime.test_umodsi3(ctypes.c_uint32(a), ctypes.c_uint32(b)) == a % b
    x, y = ctypes.c_int32(a).value, ctypes.c_int32(b).value
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    assert runtime.test_divsi3(x, y) == ctypes.c_int32(quotient).value


def test_sizes_are_parsed_to_bytes() -> None:
    assert [parse_bytes(text) for text in ("64K", "1m", "256kb", "0x100", "7", "2 KiB")] == [
        65536,
        1 << 20,
        1 << 18,
        256,
        7,
        2048,
    ]
    for text in ("", "64G", "-1", "0", "1.5K", "K"):
        with pytest.raises(ConfigError, match="is not a size"):
            parse_bytes(text)
