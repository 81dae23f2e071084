"""The protocol of the self-test: frames by hand, damage, and real programs at the other end of the port."""

import os
import shutil
import struct
import subprocess
import tty
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import ExportError
from firmware_export.codegen.c_source import generate_c
from firmware_export.firmware import serial_link
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.package import make_package_files
from firmware_export.firmware.project import make_project_files
from firmware_export.firmware.serial_link import (
    SerialPort,
    connect_board,
    encode_request,
    open_serial_port,
    parse_about,
    receive_reply,
    run_board,
)
from firmware_export.firmware.targets import TARGETS
from tests.support.qemu_boards import run_selftest_in_qemu

INPUTS = np.random.default_rng(1).integers(-128, 128, (30, 3)).astype(np.int8)
SHA256 = "0123456789abcdef" * 4
ARDUINO_H = """
#include <stdint.h>
#include <time.h>
#include <unistd.h>
struct Port {
    void begin(long) {}
    int available() { return 1; }
    int read() { unsigned char byte; if (::read(0, &byte, 1) != 1) _exit(0); return byte; }
    size_t write(const uint8_t *bytes, size_t count) { return (size_t)::write(1, bytes, count); }
};
static Port Serial;
static inline void yield() {}
static inline unsigned long micros() { return (unsigned long)clock(); }
"""
MAIN_CPP = "void setup();\nvoid loop();\nint main() { setup(); for (;;) loop(); }\n"


class Recorded:
    """A port that replays bytes and records what is written."""

    def __init__(self, received: bytes) -> None:
        self.received = received
        self.written = b""

    def read(self, size: int) -> bytes:
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    def write(self, data: bytes) -> None:
        self.written += data


def encode_reply(status: bytes, number: int, payload: bytes) -> bytes:
    body = status + struct.pack("<BI", number, len(payload)) + payload
    return b"\xe5\xf2" + body + struct.pack("<I", zlib.crc32(body))


ABOUT = (
    b"protocol=1\nmodel=" + SHA256.encode() + b"\nedgefl=0.3.0\ninput=3\noutput=2\ncompiler=12.2\n"
    b"board=a board\ncounter=cycles\nhertz=  64000000"
)


def test_request_has_the_bytes_of_the_protocol() -> None:
    body = b"R\x07\x03\x00\x00\x00\x01\xff\x80"
    expected = b"\xe5\xf1" + body + zlib.crc32(body).to_bytes(4, "little")
    assert encode_request(b"R", 256 + 7, b"\x01\xff\x80") == expected


@given(
    noise=st.binary(max_size=50), payload=st.binary(max_size=300), status=st.binary(min_size=1, max_size=1)
)
def test_reply_is_found_after_noise(noise: bytes, payload: bytes, status: bytes) -> None:
    noise = noise.replace(b"\xe5", b"")
    late = encode_reply(status, 8, b"to an earlier request")
    port = Recorded(noise + late + noise + encode_reply(status, 9, payload) + b"next")
    assert receive_reply(port, 9, 10) == (status, payload)
    assert port.received == b"next"


@given(position=st.integers(2, 15), bit=st.integers(0, 7))
def test_reply_with_a_wrong_bit_is_damaged(position: int, bit: int) -> None:
    reply = bytearray(encode_reply(b"R", 9, b"abcd"))
    reply[position] ^= 1 << bit
    try:
        status, _ = receive_reply(Recorded(bytes(reply)), 9, 0)
    except TimeoutError:  # a wrong length waits for more
        return
    assert status == serial_link.DAMAGED


def test_description_of_a_board_is_parsed() -> None:
    info = parse_about(ABOUT)
    assert (info.board, info.counter, info.ticks_per_second) == ("a board", "cycles", 64_000_000)
    assert (info.input_bytes, info.output_bytes, info.model_sha256) == (3, 2, SHA256)


def test_control_characters_of_a_board_do_not_reach_the_terminal() -> None:
    info = parse_about(ABOUT.replace(b"a board", b"\x1b[2Ja board\x07"))
    assert info.board == r"\x1b[2Ja board\x07"


@pytest.mark.parametrize(
    ("about", "found"),
    [
        (ABOUT.replace(b"protocol=1", b"protocol=2"), "protocol '2', expected 1"),
        (ABOUT.replace(b"input=3", b"input=three"), "three"),
        (ABOUT.replace(b"board=", b"bored="), "'board'"),
        (b"\xff\xfe", "protocol None"),
    ],
)
def test_wrong_descriptions_are_refused(about: bytes, found: str) -> None:
    with pytest.raises(ExportError, match=found) as error:
        parse_about(about)
    assert "flash" in str(error.value)


def test_silent_board_is_an_error_with_the_remedy() -> None:
    class Silent(Recorded):
        def read(self, size: int) -> bytes:
            return b""

    with pytest.raises(ExportError, match="did not answer within 0 s") as error:
        connect_board(Silent(b""), 3, deadline_s=0)
    assert "flash c/examples/selftest" in str(error.value)


def test_board_that_refuses_or_damages_is_an_error() -> None:
    info = parse_about(ABOUT)
    with pytest.raises(ExportError, match=r"refused sample 0 with status b'\?'"):
        run_board(Recorded(encode_reply(b"?", 1, b"")), info, INPUTS[:1])
    damaged = b"".join(encode_reply(b"!", number, b"") for number in (1, 2, 3))
    with pytest.raises(ExportError, match="damaged sample 0 3 times"):
        run_board(Recorded(damaged), info, INPUTS[:1])
    with pytest.raises(ExportError, match="sent 5 bytes for sample 0, expected 6"):
        run_board(Recorded(encode_reply(b"R", 1, bytes(5))), info, INPUTS[:1])
    port = Recorded(encode_reply(b"!", 1, b"") + encode_reply(b"R", 2, b"\x07\x00\x00\x00\x05\xfb"))
    run = run_board(port, info, INPUTS[:1])
    assert run.outputs.tolist() == [[5, -5]] and run.ticks.tolist() == [7]
    sample = INPUTS[0].tobytes()
    assert port.written == encode_request(b"R", 1, sample) + encode_request(b"R", 2, sample)


def test_missing_port_names_the_ports_of_the_computer() -> None:
    with pytest.raises(ExportError, match=r"/dev/none cannot be opened.*ports of this computer"):  # noqa: SIM117
        with open_serial_port("/dev/none", 115200):
            pass


def test_rate_that_no_port_has_is_an_error() -> None:
    board, computer = os.openpty()
    try:
        with pytest.raises(ExportError, match="cannot be opened"):  # noqa: SIM117
            with open_serial_port(os.ttyname(computer), 10**11):
                pass
    finally:
        os.close(board)
        os.close(computer)


def test_board_that_reads_nothing_is_an_error(monkeypatch) -> None:
    """The buffer of the port is full, and nobody empties it."""
    monkeypatch.setattr(serial_link, "WRITE_TIMEOUT_S", 0.2)
    board, computer = os.openpty()
    tty.setraw(computer)
    try:
        with pytest.raises(ExportError, match="read no bytes") as error:  # noqa: SIM117
            with open_serial_port(os.ttyname(computer), 115200) as port:
                connect_board(port, 100_000, deadline_s=0)
    finally:
        os.close(board)
        os.close(computer)
    assert "flash c/examples/selftest" in str(error.value)


def check_board(port: str, compute_outputs: Callable[[object], object], expected_board: str) -> None:
    with open_serial_port(port, 115200) as opened:
        info = connect_board(opened, 3, deadline_s=60)
        run = run_board(opened, info, INPUTS)
    np.testing.assert_array_equal(run.outputs, compute_outputs(INPUTS))
    assert info.board == expected_board and info.model_sha256 == SHA256
    assert (info.input_bytes, info.output_bytes) == (3, 2)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("cortex-m0", "cortex-m4", "rv32imc")))
        for name in TARGETS
        if name != "host"
    ],
)
def test_selftest_answers_on_every_core(name: str, tmp_path: Path, hand) -> None:
    reason = explain_not_runnable(TARGETS[name]) or ("" if shutil.which("cmake") else "CMake is missing")
    if reason:
        pytest.skip(reason)
    for path, text in make_project_files(hand.FILES, TARGETS[name]).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    with run_selftest_in_qemu(tmp_path, TARGETS[name]) as port:
        check_board(port, hand.compute_outputs, f"QEMU {TARGETS[name].machine}")


@pytest.fixture
def sketch(hand, tmp_path: Path) -> Iterator[str]:
    with run_sketch(hand.FILES, tmp_path) as port:
        yield port


@contextmanager
def run_sketch(model: Mapping[str, str], tmp_path: Path) -> Iterator[str]:
    """Run the exported sketch with a stub of Arduino's core.

    Yields:
        The name of its serial port.
    """
    folder = tmp_path / "door"
    for path, text in make_package_files(model, "door", SHA256).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    selftest = folder / "examples" / "selftest"
    shutil.copy(selftest / "selftest.ino", selftest / "main.cpp")
    (selftest / "Arduino.h").write_text(ARDUINO_H)
    (tmp_path / "core.cpp").write_text(MAIN_CPP)
    c_options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{folder}", "-c"]
    for source in (folder / "door.c", folder / "door_weights.c", selftest / "selftest.c"):
        subprocess.run(
            ["cc", *c_options, source, "-o", tmp_path / f"{source.stem}.o"], check=True, timeout=60
        )
    cpp_options = ["-Wall", "-Wextra", "-Werror", f"-I{selftest}"]
    sources = [selftest / "main.cpp", tmp_path / "core.cpp", *tmp_path.glob("*.o")]
    subprocess.run(["g++", *cpp_options, *sources, "-o", tmp_path / "sketch"], check=True, timeout=100)
    board, computer = os.openpty()
    tty.setraw(computer)
    with subprocess.Popen([tmp_path / "sketch"], stdin=board, stdout=board) as process:
        try:
            yield os.ttyname(computer)
        finally:
            process.kill()
            os.close(board)
            os.close(computer)


def test_sketch_answers_over_a_serial_port(sketch: str, hand) -> None:
    check_board(sketch, hand.compute_outputs, "a board with Arduino")


def test_board_recovers_from_an_interrupted_request(sketch: str, hand) -> None:
    """The first program was ended in the middle of a request."""
    with open_serial_port(sketch, 115200) as opened:
        opened.write(encode_request(b"R", 1, INPUTS[0].tobytes())[:9])
    check_board(sketch, hand.compute_outputs, "a board with Arduino")


def test_board_reports_a_damaged_and_an_unknown_request(sketch: str) -> None:
    with open_serial_port(sketch, 115200) as opened:
        damaged = bytearray(encode_request(b"R", 5, b"abc"))
        damaged[9] ^= 4
        for request, status in (
            (bytes(damaged), b"!"),
            (encode_request(b"X", 5), b"?"),
            (encode_request(b"R", 5, b"ab"), b"?"),
            (encode_request(b"R", 5, b"abcd"), b"?"),
        ):
            opened.write(request)
            assert receive_reply(opened, 5, 20) == (status, b"")


class Damaging:
    """A port that changes a bit of one byte that it receives."""

    def __init__(self, port: SerialPort, position: int) -> None:
        self.port = port
        self.left = position
        self.write = port.write

    def read(self, size: int) -> bytes:
        taken = bytearray(self.port.read(size))
        if 0 <= self.left < len(taken):
            taken[self.left] ^= 4
        self.left -= len(taken)
        return bytes(taken)


@pytest.mark.parametrize("position", [17, 25, 61])
def test_model_with_a_state_begins_again_after_a_damaged_answer(
    graphs, tmp_path: Path, position: int, monkeypatch
) -> None:
    """The model's output is the sum of its inputs so far. Each answer has 17 bytes, with a mark of two."""
    monkeypatch.setattr(serial_link, "INFERENCE_DEADLINE_S", 1)
    q = 0.5, 0
    tensors = [graphs.T((1, 1), *q), graphs.make_handle(), graphs.T((1, 1), *q), graphs.T((1, 1), *q)]
    operators = [
        graphs.name_variable("sum", 1),
        graphs.Op("READ_VARIABLE", (1,), (2,)),
        graphs.Op(name="ADD", inputs=(0, 2), outputs=(3,), options={}, options_class="Add"),
        graphs.Op("ASSIGN_VARIABLE", (1, 3), ()),
    ]
    model = generate_c(graphs.make_tflite(tensors, operators)).files
    inputs = np.arange(1, 7, dtype=np.int8)[:, None]
    with run_sketch(model, tmp_path) as name, open_serial_port(name, 115200) as opened:
        info = connect_board(opened, 1, deadline_s=60)
        assert info.state_bytes == 8
        for _ in range(2):  # the second run begins a new sequence, too
            connect_board(opened, 1)
            done: list[int] = []
            run = run_board(Damaging(opened, position), info, inputs, done.append)
            assert run.outputs.ravel().tolist() == [1, 3, 6, 10, 15, 21]
            assert done.count(1) == 2, "the sequence did not begin again"
