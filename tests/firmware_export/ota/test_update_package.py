"""Updates that the firmware's C applies, compiled for this machine.

An array stands for the flash. A power cut can interrupt each of its operations.
"""

import ctypes
import hashlib
import itertools
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.errors import ExportError
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.targets import TARGETS
from firmware_export.ota.update_package import (
    PART_ENTRY,
    UPDATE_HEADER,
    FirmwarePart,
    FirmwareParts,
    draw_self_test_inputs,
    hash_device_id,
    make_update,
    read_update,
)

BOARD = Path(__file__).parents[1] / "ota_board"
SOURCE = Path(__file__).parents[3] / "firmware_export/templates/ota"
LAYOUT = "00112233445566778899aabbccddeeff" * 2
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
(
    DONE,
    BAD_FORMAT,
    BAD_SIGNATURE,
    OLD_COUNTER,
    OTHER_LAYOUT,
    OTHER_BASE,
    BAD_DIGEST,
    NO_ROOM,
    NOT_WRITTEN,
    SELF_TEST_FAILED,
) = range(10)
OTHER_DEVICE = 10
OTHER_VERSION = 11
SLOT = (0, 1)
COUNTER_PAGES = (2, 3)
RECORD = 80
MANIFEST_BYTES = UPDATE_HEADER.size + 2 * PART_ENTRY.size + 64
DEVICE = "pi-1"
DEVICE_DIGEST = hash_device_id(DEVICE)
SAMPLE = np.array([1, 2, 3, 4, 5], np.int8)
BUILT_IN = (7, 3)
EXPERT_BYTES = 35
SLOT_PARTS = 48
"""Size of both parts in a slot, each padded to 8 bytes."""


def make_parts(trunk: int, weight: int) -> FirmwareParts:
    """Return the parts of ota_board/model.c with these values."""
    return FirmwareParts(
        LAYOUT,
        (
            FirmwarePart("trunk", trunk.to_bytes(4, "little")),
            FirmwarePart("expert0", bytes([weight]).ljust(EXPERT_BYTES, b"\0")),
        ),
    )


def make_answer(trunk: int, weight: int) -> Callable[[Any], Any]:
    def run(samples: Any) -> Any:
        total = samples.astype(int).sum(axis=1) + trunk
        return np.stack([total & 127, weight * (total & 31)], axis=1).astype(np.int8)

    return run


def build_update(
    values: tuple[int, int],
    counter: int = 1,
    old: tuple[int, int] | None = BUILT_IN,
    computes: tuple[int, int] | None = None,
    device: str = DEVICE,
) -> bytes:
    return make_update(
        make_parts(*old) if old else None,
        make_parts(*values),
        counter=counter,
        sign=KEY.sign,
        answer=make_answer(*(computes or values)),
        inputs=5,
        device=device,
    )


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc here; apt install gcc")
    path = tmp_path_factory.mktemp("ota") / "ota.so"
    sources = [BOARD / "board.c", BOARD / "model.c", SOURCE / "ota.c", SOURCE / "sha2.c"]
    flags = ["-std=c99", "-O2", "-fPIC", f"-I{BOARD}", f"-I{SOURCE}", f"-I{SOURCE / 'monocypher'}"]
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    objects = []
    for source, extra in [*((s, strict) for s in sources), (SOURCE / "monocypher/monocypher.c", [])]:
        objects.append(path.parent / f"{source.stem}.o")
        subprocess.run([compiler, *flags, *extra, "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([compiler, "-shared", *objects, "-o", path], check=True)
    return path


@pytest.mark.parametrize("name", ["ota.c", "sha2.c"])
def test_gcc_analyzer_reports_nothing(name: str, tmp_path: Path) -> None:
    """It follows the paths of a function and reports a read of memory that was not set."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here; apt install gcc")
    flags = ["-std=c99", "-O1", "-fanalyzer", "-Wall", "-Wextra", "-Werror"]
    folders = [f"-I{folder}" for folder in (BOARD, SOURCE, SOURCE / "monocypher")]
    command = ["gcc", *flags, *folders, "-c", str(SOURCE / name), "-o", str(tmp_path / "object.o")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_updater_needs_a_few_hundred_bytes_of_ram(tmp_path: Path) -> None:
    target = TARGETS["cortex-m4"]
    if reason := explain_not_runnable(target):
        pytest.skip(reason)
    compiled = tmp_path / "ota.o"
    folders = [f"-I{folder}" for folder in (BOARD, SOURCE, SOURCE / "monocypher")]
    command = [target.architecture.gcc, *target.flags, "-std=c99", "-O2", *folders]
    subprocess.run([*command, "-c", SOURCE / "ota.c", "-o", compiled], check=True)
    size = f"{target.architecture.tool_prefix}size"
    sizes = subprocess.run([size, compiled], capture_output=True, text=True, check=True).stdout.split()
    assert int(sizes[7]) + int(sizes[8]) < 512, "data and bss"


@pytest.fixture
def board(library: Path, tmp_path: Path) -> Iterator[Any]:
    """A new board. A copy of the library has separate memory."""
    loaded = ctypes.CDLL(str(shutil.copy(library, tmp_path / "board.so")))
    for name in ("area", "everything"):
        getattr(loaded, name).restype = ctypes.POINTER(ctypes.c_uint8)
    assert loaded.boot() == 0
    yield loaded
    assert ctypes.c_int.in_dll(loaded, "violations").value == 0, (
        "a write outside of an area, unaligned, or to bytes that are not erased"
    )


def apply(board: Any, content: bytes, key: bytes = PUBLIC, device: str = DEVICE) -> int:
    return int(board.apply(content, len(content), key, hash_device_id(device)))


def set_piece(board: Any, count: int) -> None:
    """Set the number of bytes in which an update comes."""
    ctypes.c_uint32.in_dll(board, "piece").value = count


def damage_slots(board: Any) -> None:
    """Flip a bit in the parts of each slot."""
    for slot in SLOT:
        board.area(slot)[0] ^= 1


def run_model(board: Any) -> list[int]:
    out = (ctypes.c_int8 * 2)()
    board.model_invoke(SAMPLE.ctypes.data_as(ctypes.c_char_p), out)
    return list(out)


def count_operations(board: Any) -> int:
    """Return the number of erase and write operations of the flash."""
    return ctypes.c_int.in_dll(board, "operations").value


def compute_expected(values: tuple[int, int]) -> list[int]:
    return [int(v) for v in make_answer(*values)(SAMPLE[None])[0]]


def test_update_contains_only_the_changed_expert_and_survives_a_restart(board: Any) -> None:
    content = build_update((7, 5))
    assert len(content) == UPDATE_HEADER.size + 2 * PART_ENTRY.size + 64 + EXPERT_BYTES
    assert run_model(board) == compute_expected(BUILT_IN)
    assert apply(board, content) == DONE
    assert run_model(board) == compute_expected((7, 5))
    assert board.boot() == 1
    assert run_model(board) == compute_expected((7, 5))
    assert apply(board, build_update((9, 5), 2, (7, 5))) == DONE
    assert board.boot() == 2
    assert run_model(board) == compute_expected((9, 5))


def test_self_test_inputs_equal_those_of_the_firmware(board: Any) -> None:
    """Computed by hand: xorshift32 of 1 is 270369, and its low byte is 33."""
    assert draw_self_test_inputs(1, 1, 1)[0, 0] == 33 - 128
    assert abs(int(draw_self_test_inputs(1, 8, 50)[7].min())) <= 1
    assert apply(board, build_update((7, 5))) == DONE


def test_a_wrong_signature_is_refused(board: Any) -> None:
    assert apply(board, build_update((7, 5)), bytes(32)) == BAD_SIGNATURE
    content = bytearray(build_update((7, 5)))
    content[8] = 9
    assert apply(board, bytes(content)) == BAD_SIGNATURE
    assert run_model(board) == compute_expected(BUILT_IN)
    assert count_operations(board) == 0


@pytest.mark.parametrize("counter", [1, 3])
def test_an_older_counter_is_refused(board: Any, counter: int) -> None:
    assert apply(board, build_update((7, 5), 3)) == DONE
    assert apply(board, build_update((8, 5), counter, (7, 5))) == OLD_COUNTER
    board.boot()
    assert apply(board, build_update((8, 5), counter, (7, 5))) == OLD_COUNTER
    assert run_model(board) == compute_expected((7, 5))


def test_another_layout_is_refused(board: Any) -> None:
    other = replace(make_parts(7, 5), layout="ab" * 32)
    sent = make_update(None, other, counter=1, sign=KEY.sign, answer=make_answer(7, 5), inputs=5)
    assert apply(board, sent) == OTHER_LAYOUT
    more = FirmwareParts(LAYOUT, (*make_parts(7, 5).parts, FirmwarePart("expert1", b"123")))
    assert (
        apply(board, make_update(None, more, counter=1, sign=KEY.sign, answer=make_answer(7, 5), inputs=5))
        == OTHER_LAYOUT
    )
    longer = FirmwareParts(LAYOUT, (make_parts(7, 5).parts[0], FirmwarePart("expert0", b"1234")))
    assert (
        apply(board, make_update(None, longer, counter=1, sign=KEY.sign, answer=make_answer(7, 5), inputs=5))
        == OTHER_LAYOUT
    )
    assert count_operations(board) == 0


def test_an_update_for_another_base_is_refused(board: Any) -> None:
    assert apply(board, build_update((8, 5), 1, (8, 3))) == OTHER_BASE
    assert run_model(board) == compute_expected(BUILT_IN)


def test_nothing_is_written_before_the_manifest_is_verified(board: Any) -> None:
    content = build_update((7, 5))
    board.begin(PUBLIC, DEVICE_DIGEST)
    assert board.send_pieces(content, MANIFEST_BYTES - 1) == DONE
    assert count_operations(board) == 0
    assert board.send_pieces(bytes([content[MANIFEST_BYTES - 1] ^ 1]), 1) == BAD_SIGNATURE
    assert board.send_pieces(content[MANIFEST_BYTES:], EXPERT_BYTES) == BAD_SIGNATURE, "the rest is ignored"
    assert board.ota_finish() == BAD_SIGNATURE
    assert count_operations(board) == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), BAD_DIGEST),
        (lambda content: content[:-1], BAD_FORMAT),
        (lambda content: content[:-EXPERT_BYTES], BAD_FORMAT),
        (lambda content: content + b"\0", BAD_FORMAT),
    ],
    ids=["damaged", "too short", "missing", "too long"],
)
@pytest.mark.parametrize("piece", [1, 10, 1000])
def test_a_damaged_part_is_refused(
    board: Any, piece: int, change: Callable[[bytes], bytes], expected: int
) -> None:
    set_piece(board, piece)
    content = build_update((7, 5))
    assert apply(board, change(content)) == expected
    assert run_model(board) == compute_expected(BUILT_IN)
    assert (board.boot(), board.highest()) == (0, 0)
    assert apply(board, content) == DONE


def test_pieces_need_a_begin_and_one_finish(board: Any) -> None:
    content = build_update((7, 5))
    assert board.send_pieces(content, len(content)) == board.ota_finish() == BAD_FORMAT
    board.begin(PUBLIC, DEVICE_DIGEST)
    assert board.ota_finish() == BAD_FORMAT
    board.begin(PUBLIC, DEVICE_DIGEST)
    board.boot()
    assert board.send_pieces(content, len(content)) == board.ota_finish() == BAD_FORMAT
    assert count_operations(board) == 0
    assert apply(board, content) == DONE
    assert board.ota_finish() == BAD_FORMAT
    assert run_model(board) == compute_expected((7, 5))


@pytest.mark.parametrize("restart", [False, True])
def test_an_update_that_stops_at_any_byte_can_begin_again(board: Any, restart: bool) -> None:
    content = build_update((7, 5))
    flash = read_flash(board)
    for count in range(len(content) + 1):
        restore(board, flash)
        board.begin(PUBLIC, DEVICE_DIGEST)
        assert board.send_pieces(content, count) == DONE
        assert run_model(board) == compute_expected(BUILT_IN), "old parts are in use until the end"
        if restart:
            assert board.boot() == 0
        assert apply(board, content) == DONE
        assert board.boot() == 1


@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=9), old=st.sampled_from([BUILT_IN, None]))
def test_pieces_of_any_size_write_the_same_slot(library: Path, sizes: list[int], old: Any) -> None:
    """Computed by hand: both parts, each padded to 8 bytes, then the record."""
    board = ctypes.CDLL(str(library))
    for name in ("area", "everything"):
        getattr(board, name).restype = ctypes.POINTER(ctypes.c_uint8)
    board.boot()
    flash = read_flash(board)
    content = build_update((7, 5), old=old)
    board.begin(PUBLIC, DEVICE_DIGEST)
    rest = content
    for size in itertools.cycle(sizes):
        assert board.send_pieces(rest, min(size, len(rest))) == DONE
        rest = rest[size:]
        if not rest:
            break
    assert board.ota_finish() == DONE
    parts = (7).to_bytes(4, "little") + bytes(4) + bytes([5]) + bytes(39)
    head = b"EFLS" + struct.pack("<III", 2, 1, 0) + bytes.fromhex(LAYOUT)
    slot = parts + head + hashlib.sha256(head + parts).digest()
    assert bytes(board.area(0)[: SLOT_PARTS + RECORD]) == slot
    restore(board, flash)


@pytest.mark.parametrize("lost", range(2, 11))
def test_a_write_that_flash_does_not_store_is_detected(board: Any, lost: int) -> None:
    """Operation 1 is the erase of the slot. Six words, the counter and the record follow."""
    set_piece(board, 1)
    content = build_update((7, 5))
    ctypes.c_int.in_dll(board, "lost").value = lost
    assert apply(board, content) == (NOT_WRITTEN if lost < 10 else DONE)
    if lost < 10:
        assert run_model(board) == compute_expected(BUILT_IN)
        assert board.boot() == 0
        assert apply(board, content) == DONE
    assert board.boot() == 1


def test_a_failed_self_test_rolls_back(board: Any) -> None:
    assert apply(board, build_update((7, 5))) == DONE
    assert apply(board, build_update((7, 9), 2, (7, 5), computes=(7, 8))) == SELF_TEST_FAILED
    assert run_model(board) == compute_expected((7, 5))
    assert board.boot() == 1
    assert run_model(board) == compute_expected((7, 5))
    assert apply(board, build_update((7, 9), 2, (7, 5))) == DONE


def test_update_is_refused_if_slots_or_counter_pages_are_too_small(board: Any) -> None:
    board.set_slot_bytes(SLOT_PARTS + RECORD - 1)
    assert apply(board, build_update((7, 5))) == NO_ROOM
    board.set_slot_bytes(SLOT_PARTS + RECORD)
    board.set_counter_bytes(15)
    assert apply(board, build_update((7, 5))) == NO_ROOM
    board.set_counter_bytes(16)
    assert apply(board, build_update((7, 5))) == DONE


def read_flash(board: Any) -> bytes:
    """Return the whole content of the flash."""
    return ctypes.string_at(board.everything(), board.everything_bytes())


def restore(board: Any, content: bytes) -> None:
    ctypes.memmove(board.everything(), content, len(content))
    board.boot()


@pytest.mark.parametrize("torn", range(5))
@pytest.mark.parametrize("applied", range(1, 6))
def test_power_cut_at_any_operation_keeps_a_model_and_the_counter(
    board: Any, torn: int, applied: int
) -> None:
    """Cut the power in the update that follows `applied` updates.

    A counter page has two records. Updates start a page, fill it, and erase it while the other page counts.
    """
    board.set_counter_bytes(32)
    set_piece(board, (1, 10, 1000)[(torn + applied) % 3])
    values = [BUILT_IN, *((7, weight) for weight in range(4, 11))]
    for number in range(1, applied + 1):
        before = count_operations(board)
        assert apply(board, build_update(values[number], number, values[number - 1])) == DONE
    last = values[applied]
    values_after = values[applied + 1]
    following = build_update(values_after, applied + 1, last)
    flash = read_flash(board)
    # One more operation for the erase of a counter page, and one for a cut after the last operation
    count = count_operations(board) - before + 2
    ctypes.c_int.in_dll(board, "torn").value = torn
    done = 0
    for cut in range(1, count + 1):
        restore(board, flash)
        ctypes.c_int.in_dll(board, "power").value = cut
        result = apply(board, following)
        whole = result == DONE or (torn == 4 and board.boot() == applied + 1)
        done += whole
        assert result in (DONE, NOT_WRITTEN), cut
        assert run_model(board) == compute_expected(values_after if whole else last), cut
        assert board.boot() == applied + whole, cut
        assert run_model(board) == compute_expected(values_after if whole else last), cut
        assert board.highest() in (applied, applied + 1) and board.highest() >= board.boot(), cut
        assert apply(board, build_update(values[applied], applied, None)) == OLD_COUNTER, cut
        if not whole:
            assert apply(board, following) == DONE, cut
        assert board.boot() == board.highest() == applied + 1, cut
        assert run_model(board) == compute_expected(values_after), cut
        damage_slots(board)
        assert (board.boot(), board.highest()) == (0, applied + 1), cut
    assert done, "no cut came after the last operation"


@pytest.mark.parametrize("cuts", [100, pytest.param(1400, marks=pytest.mark.slow)])
def test_a_board_survives_power_cuts_at_random_points(board: Any, cuts: int) -> None:
    """Update one board again and again. The power fails in an operation of its flash, or between pieces."""
    board.set_counter_bytes(32)
    rng = np.random.default_rng(cuts)
    power = ctypes.c_int.in_dll(board, "power")
    counter = 0
    values = BUILT_IN
    happened = 0
    while happened < cuts:
        values_after = (int(rng.integers(100)), int(rng.integers(100)))
        content = build_update(values_after, counter + 1, values if rng.random() < 0.5 else None)
        cut = True
        while cut and board.boot() == counter:
            set_piece(board, int(rng.choice([1, 5, 64, 1000])))
            stop = int(rng.integers(3 * len(content)))
            if stop < len(content):
                board.begin(PUBLIC, DEVICE_DIGEST)
                assert board.send_pieces(content, stop) == DONE
            else:
                power.value = int(rng.integers(1, 20))
                ctypes.c_int.in_dll(board, "torn").value = int(rng.integers(5))
                result = apply(board, content)
                cut = power.value == 0
                assert result == (NOT_WRITTEN if cut else DONE)
            happened += cut
            runs = board.boot()
            assert run_model(board) == compute_expected(values_after if runs > counter else values)
            assert board.highest() in (counter, counter + 1)
        counter += 1
        values = values_after
        assert board.boot() == board.highest() == counter


def test_loss_of_both_slots_restores_built_in_model_and_preserves_counter(board: Any) -> None:
    sent = [
        build_update((7, 4 + number), number, (7, 3 + number) if number > 1 else BUILT_IN)
        for number in (1, 2, 3)
    ]
    for content in sent:
        assert apply(board, content) == DONE
    damage_slots(board)
    assert (board.boot(), board.highest()) == (0, 3)
    assert run_model(board) == compute_expected(BUILT_IN)
    assert apply(board, sent[0]) == OLD_COUNTER
    assert apply(board, build_update((7, 9), 2, None)) == OLD_COUNTER
    assert run_model(board) == compute_expected(BUILT_IN)
    assert apply(board, build_update((7, 7), 3, None)) == DONE, (
        "the newest one may come again: it brings the board back"
    )
    assert (board.boot(), board.highest()) == (3, 3)
    assert apply(board, build_update((7, 7), 3, None)) == OLD_COUNTER


@pytest.mark.parametrize("record", range(3))
def test_counter_survives_damage_to_a_counter_page(board: Any, record: int) -> None:
    """Damage each record of a page in turn. The slots store counters too."""
    for number in (1, 2, 3):
        assert apply(board, build_update((7, 3 + number), number, (7, 2 + number))) == DONE
    board.area(COUNTER_PAGES[0])[16 * record + 9] ^= 1
    assert (board.boot(), board.highest()) == (3, 3)
    assert apply(board, build_update((7, 9), 3, None)) == OLD_COUNTER
    assert apply(board, build_update((7, 9), 4, None)) == DONE
    assert (board.boot(), board.highest()) == (4, 4)


def test_counter_pages_alternate_when_full(board: Any) -> None:
    board.set_counter_bytes(48)
    for number in range(1, 20):
        assert apply(board, build_update((7, number), number, None)) == DONE
        damage_slots(board)
        assert (board.boot(), board.highest()) == (0, number)


def test_uninitialized_counter_pages_are_erased_and_used(board: Any) -> None:
    """A page that was never erased contains no counters. The firmware erases it before it writes."""
    for page in COUNTER_PAGES:
        for offset in range(128):
            board.area(page)[offset] = offset * 37 & 255
    assert (board.boot(), board.highest()) == (0, 0)
    assert apply(board, build_update((7, 5), 5)) == DONE
    damage_slots(board)
    assert (board.boot(), board.highest()) == (0, 5)


def test_an_update_for_another_device_is_refused(board: Any) -> None:
    personal = build_update((7, 5))
    assert apply(board, personal, device="pi-2") == OTHER_DEVICE
    assert apply(board, personal, device="") == OTHER_DEVICE
    assert count_operations(board) == 0
    assert board.highest() == 0, "the device's own update 1 must stay possible"
    assert run_model(board) == compute_expected(BUILT_IN)
    changed = bytearray(personal)
    changed[48:80] = bytes(32)
    assert apply(board, bytes(changed), device="pi-2") == BAD_SIGNATURE, "the device is signed"
    assert apply(board, build_update((7, 5), device="pi-2"), device="pi-2") == DONE


@pytest.mark.parametrize("device", ["pi-1", "pi-2", ""])
def test_every_device_accepts_an_update_for_all_devices(board: Any, device: str) -> None:
    assert apply(board, build_update((7, 5), device=""), device=device) == DONE


def build_old_update(values: tuple[int, int]) -> bytes:
    """Return an update in version 1 of the format, which has no device."""
    content = build_update(values)
    head = bytearray(content[:48] + content[80 : 120 + 2 * PART_ENTRY.size])
    head[4] = 1
    return bytes(head) + KEY.sign(bytes(head)) + content[120 + 2 * PART_ENTRY.size + 64 :]


def test_an_update_of_the_old_format_is_refused(board: Any) -> None:
    assert apply(board, build_old_update((7, 5))) == OTHER_VERSION
    assert count_operations(board) == 0
    with pytest.raises(
        ExportError, match=r"format version 1, expected 2.*make it again with `edgefl export update`"
    ):
        read_update(build_old_update((7, 5)))


def test_slot_of_the_old_format_is_ignored_and_overwritten(board: Any) -> None:
    """A slot of version 1 has a mark, a counter, a layout, and a digest of counter, layout and parts."""
    content = (7).to_bytes(4, "little") + bytes(4) + bytes([9]) + bytes(39)
    counter = (2).to_bytes(4, "little")
    layout = bytes.fromhex(LAYOUT)
    record = b"EFLS" + counter + layout + hashlib.sha256(counter + layout + content).digest()
    for slot in SLOT:
        ctypes.memmove(board.area(slot), content + record, len(content + record))
    assert (board.boot(), board.highest()) == (0, 0)
    assert run_model(board) == compute_expected(BUILT_IN)
    assert apply(board, build_update((7, 5), 1)) == DONE
    assert board.boot() == 1


def test_a_slot_of_a_newer_format_is_ignored(board: Any) -> None:
    assert apply(board, build_update((7, 5))) == DONE
    assert board.area(0)[SLOT_PARTS + 4] == 2
    board.area(0)[SLOT_PARTS + 4] = 3
    assert board.boot() == 0
    assert run_model(board) == compute_expected(BUILT_IN)


def test_an_endless_self_test_is_refused(board: Any) -> None:
    """A signed self-test of 2^32 - 1 inputs would block the board."""
    content = build_update((7, 5))
    head = bytearray(content[: 120 + 2 * PART_ENTRY.size])
    head[84:88] = (2**32 - 1).to_bytes(4, "little")
    assert apply(board, bytes(head) + KEY.sign(bytes(head)) + content[len(head) + 64 :]) == BAD_FORMAT


def test_a_flipped_bit_in_the_used_slot_is_detected_at_the_next_start(board: Any) -> None:
    assert apply(board, build_update((7, 5), 1)) == DONE
    assert apply(board, build_update((7, 6), 2, (7, 5))) == DONE
    board.area(1)[8] ^= 4
    assert board.boot() == 1
    assert run_model(board) == compute_expected((7, 5))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damaged_update_is_applied(library: Path, data: st.DataObject) -> None:
    board = ctypes.CDLL(str(library))
    board.boot()
    content = bytearray(build_update((7, 5), 2**31))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert apply(board, bytes(content)) != DONE
    assert run_model(board) == compute_expected(BUILT_IN)


def test_sha_256_and_sha_512_equal_hashlib(library: Path) -> None:
    """Compare with hashlib for every length around the ends of blocks.

    The signatures in the tests above cover SHA-512.
    """
    loaded = ctypes.CDLL(str(library))
    for length in (*range(130), 1000):
        message = bytes(i * 7 & 255 for i in range(length))
        digest = ctypes.create_string_buffer(32)
        loaded.sha256_of(message, length, digest)
        assert digest.raw == hashlib.sha256(message).digest(), length
        third = length // 3
        pieces = [
            ctypes.create_string_buffer(p, max(1, len(p)))
            for p in (message[:third], message[third : 2 * third], message[2 * third :])
        ]
        long = ctypes.create_string_buffer(64)
        counts = (ctypes.c_uint32 * 3)(third, third, length - 2 * third)
        loaded.sha512_of((ctypes.c_void_p * 3)(*(ctypes.addressof(p) for p in pieces)), counts, long)
        assert long.raw == hashlib.sha512(message).digest(), length


def test_make_update_refuses_invalid_updates() -> None:
    with pytest.raises(ExportError, match="no update is needed"):
        build_update(BUILT_IN)
    with pytest.raises(ExportError, match="count the updates"):
        build_update((7, 5), 0)
    with pytest.raises(ExportError, match="flash the whole new firmware"):
        make_update(
            replace(make_parts(7, 5), layout="ab" * 32),
            make_parts(7, 6),
            counter=1,
            sign=KEY.sign,
            answer=make_answer(7, 6),
            inputs=5,
        )


def test_read_update_returns_the_manifest_and_refuses_damaged_bytes() -> None:
    content = build_update((7, 5), 3)
    manifest = read_update(content)
    assert (manifest.counter, manifest.layout, [is_carried for _, is_carried, _ in manifest.entries]) == (
        3,
        LAYOUT,
        [False, True],
    )
    for bad, text in (
        (b"x", "not an update"),
        (content[:130], "truncated"),
        (content[:-1], "expected"),
        (content[:4] + b"\3" + content[5:], "update edgefl"),
        (content[:4] + b"\1" + content[5:], "make it again with `edgefl export update`"),
    ):
        with pytest.raises(ExportError, match=text):
            read_update(bad)
