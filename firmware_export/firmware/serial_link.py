"""The protocol of the self-test: requests to a board over a serial port, and its replies.

A request is REQUEST_MARK, a command, the request's number, the length of the payload, the payload, and the
CRC-32 from the command on. A reply begins with REPLY_MARK, has a status in place of the command, and repeats
the number. Length and CRC have 32 bits, lowest byte first. The other end is
`templates/package/examples/selftest.c.in`.
"""

import itertools
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.system.format import escape_unprintable

REQUEST_MARK = b"\xe5\xf1"
REPLY_MARK = b"\xe5\xf2"
ABOUT = b"I"
INFERENCE = b"R"
DAMAGED = b"!"
REFUSED = b"?"
PROTOCOL = "1"
MAX_REPLY_BYTES = 1 << 20
ATTEMPTS = 3
"""Number of times that a request is sent which the line damages."""
START_DEADLINE_S = 15.0
"""Maximum time in seconds until a board answers. Many boards start again when their port is opened."""
START_INTERVAL_S = 1.0
READ_TIMEOUT_S = 0.2
WRITE_TIMEOUT_S = 15.0
"""Maximum time in seconds until the port takes WRITE_BYTES. A board that reads nothing blocks its port."""
WRITE_BYTES = 256
INFERENCE_DEADLINE_S = 60.0
SELFTEST_REMEDY = (
    "flash c/examples/selftest of this export, close other programs that use the port, and check --baud"
)


class SerialPort(Protocol):
    """The functions of `serial.Serial` that are used here."""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes. Fewer after a short time without bytes."""

    def write(self, data: bytes) -> Any:
        """Send bytes."""


@dataclass(frozen=True)
class BoardInfo:
    """What a board says about itself.

    Attributes:
        board: name of the board.
        model_sha256: digest of the model's .tflite, in hexadecimal.
        edgefl: version of edgefl that made the C.
        compiler: version of the compiler.
        input_bytes: size of an input.
        output_bytes: size of an output.
        counter: what a tick is, such as "cycles" or "microseconds".
        ticks_per_second: rate of the counter.
        state_bytes: size of what the model keeps from one inference to the next. 0 for a model without state.
    """

    board: str
    model_sha256: str
    edgefl: str
    compiler: str
    input_bytes: int
    output_bytes: int
    counter: str
    ticks_per_second: int
    state_bytes: int = 0


@dataclass(frozen=True)
class BoardRun:
    """The outputs and times of a board.

    Attributes:
        info: what the board says about itself.
        outputs: outputs, shape (n, m), int8.
        ticks: time of each inference in ticks, shape (n,), int64.
    """

    info: BoardInfo
    outputs: Any
    ticks: Any


@contextmanager
def open_serial_port(port: str, baud: int) -> Iterator[SerialPort]:
    """Open a serial port for the time of a context.

    Args:
        port: name or pyserial URL of the port, such as /dev/ttyACM0, COM3 or socket://localhost:4321.
        baud: rate in bits per second.

    Raises:
        ExportError: pyserial is not installed, or the port cannot be opened or breaks.
    """
    try:
        import serial
        from serial.tools.list_ports import comports
    except ImportError as error:
        raise ExportError(
            "--serial needs pyserial, which is missing; pip install 'edgefl[export]'"
        ) from error
    try:
        opened = serial.serial_for_url(port, baud, timeout=READ_TIMEOUT_S, write_timeout=WRITE_TIMEOUT_S)
    except (OSError, ValueError, OverflowError) as error:  # OverflowError: a baud rate of more than 31 bits
        ports = ", ".join(item.device for item in comports()) or "none"
        raise ExportError(
            f"the serial port {port} cannot be opened: {error}; pass one of the ports of this computer: "
            f"{ports}"
        ) from error
    with opened:
        try:
            yield opened
        except serial.SerialTimeoutException as error:
            raise ExportError(
                f"the board at {port} read no bytes for {WRITE_TIMEOUT_S:.0f} s, expected its self-test; "
                f"{SELFTEST_REMEDY}"
            ) from error
        except serial.SerialException as error:
            raise ExportError(
                f"the serial port {port} broke: {error}; connect the board again, and close other programs "
                "that use the port"
            ) from error


def encode_request(command: bytes, number: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a request.

    Args:
        command: the command, one byte.
        number: number of the request. Its lowest eight bits are sent.
        payload: what the command needs.
    """
    body = command + struct.pack("<BI", number & 0xFF, len(payload)) + payload
    return REQUEST_MARK + body + struct.pack("<I", zlib.crc32(body))


def send_bytes(port: SerialPort, data: bytes) -> None:
    """Write bytes in parts, so that the timeout of the port does not limit the time of a slow line.

    Args:
        data: the bytes.
    """
    for begin in range(0, len(data), WRITE_BYTES):
        port.write(data[begin : begin + WRITE_BYTES])


def receive_reply(port: SerialPort, number: int, deadline_s: float) -> tuple[bytes, bytes]:
    """Wait for the reply to a request. Other bytes and late replies to earlier requests are ignored.

    Args:
        deadline_s: maximum time in seconds.

    Returns:
        The status, one byte, and the payload. The status is DAMAGED if the reply's CRC is wrong.

    Raises:
        TimeoutError: there was no complete reply in time.
    """
    ends_at = time.monotonic() + deadline_s

    def read(count: int) -> bytes:
        received = b""
        while len(received) < count:
            if time.monotonic() > ends_at:
                raise TimeoutError
            received += port.read(count - len(received))
        return received

    while True:
        mark = read(len(REPLY_MARK))
        while mark != REPLY_MARK:
            mark = mark[1:] + read(1)
        head = read(6)
        replied, length = struct.unpack("<BI", head[1:])
        if length > MAX_REPLY_BYTES:
            return DAMAGED, b""
        payload = read(length)
        (crc,) = struct.unpack("<I", read(4))
        if crc != zlib.crc32(head + payload):
            return DAMAGED, b""
        if replied == number & 0xFF:
            return head[:1], payload


def parse_about(payload: bytes) -> BoardInfo:
    """Parse a board's answer to ABOUT, lines of the form name=value. Control characters are escaped.

    Raises:
        ExportError: a value is missing or invalid, or the board has another version of the protocol.
    """
    lines = payload.decode("ascii", "replace").splitlines()
    parts = (escape_unprintable(line).partition("=") for line in lines)
    values = {name: value.strip() for name, _, value in parts}
    if values.get("protocol") != PROTOCOL:
        raise ExportError(
            f"the board's self-test has protocol {values.get('protocol')!r}, expected {PROTOCOL}; export "
            "again, and flash the new self-test"
        )
    try:
        return BoardInfo(
            board=values["board"],
            model_sha256=values["model"],
            edgefl=values["edgefl"],
            compiler=values["compiler"],
            input_bytes=int(values["input"]),
            output_bytes=int(values["output"]),
            counter=values["counter"],
            ticks_per_second=int(values["hertz"]),
            state_bytes=int(values.get("state", 0)),
        )
    except (KeyError, ValueError) as error:
        raise ExportError(
            f"the board's description is damaged: {error!r}, expected the values of selftest.c; "
            f"{SELFTEST_REMEDY}"
        ) from error


def connect_board(port: SerialPort, input_bytes: int, deadline_s: float = START_DEADLINE_S) -> BoardInfo:
    """Ask a board what runs on it, until it answers.

    Args:
        input_bytes: size of the model's input. A board may still wait for the rest of an earlier request.
            Zeros of this number end that request.
        deadline_s: maximum time in seconds.

    Raises:
        ExportError: the board does not answer, or `parse_about` refuses the answer.
    """
    ends_at = time.monotonic() + deadline_s
    while True:
        send_bytes(port, encode_request(ABOUT, 0))
        try:
            status, payload = receive_reply(port, 0, START_INTERVAL_S)
            if status == ABOUT:
                return parse_about(payload)
        except TimeoutError:
            send_bytes(port, bytes(input_bytes + 16))
        if time.monotonic() > ends_at:
            raise ExportError(
                f"the board did not answer within {deadline_s:.0f} s, expected its self-test; "
                f"{SELFTEST_REMEDY}"
            )


def run_board(
    port: SerialPort, info: BoardInfo, inputs: Any, progress: Callable[[int], object] = lambda done: None
) -> BoardRun:
    """Run a board's model on inputs.

    A board whose answer is lost has perhaps run the inference. A model with a state then begins the sequence
    again.

    Args:
        port: the port of a board that `connect_board` reached.
        info: what the board says about itself.
        inputs: quantized samples, shape (n, ...), in the type of the model's input.
        progress: called with the number of finished samples.

    Raises:
        ExportError: the board stops to answer, refuses a request, or the line damages too many bytes.
    """
    requests = itertools.cycle(range(1, 256))
    for _ in range(ATTEMPTS - 1 if info.state_bytes else 0):
        with suppress(_NoAnswerError):
            return _run_sequence(port, info, inputs, requests, progress)
        connect_board(port, info.input_bytes)
    return _run_sequence(port, info, inputs, requests, progress)


class _NoAnswerError(ExportError):
    """A board has not answered a request for an inference, or its answer was damaged."""


def _run_sequence(
    port: SerialPort,
    info: BoardInfo,
    inputs: Any,
    requests: Iterator[int],
    progress: Callable[[int], object],
) -> BoardRun:
    outputs = []
    ticks = []
    for number, sample in enumerate(inputs):
        payload = _request_inference(port, info, requests, sample, number)
        if len(payload) != 4 + info.output_bytes:
            raise ExportError(
                f"the board sent {len(payload)} bytes for sample {number}, expected {4 + info.output_bytes}; "
                f"{SELFTEST_REMEDY}"
            )
        ticks.append(int(struct.unpack("<I", payload[:4])[0]))
        outputs.append(np.frombuffer(payload[4:], np.int8))
        progress(number + 1)
    return BoardRun(info, np.array(outputs), np.array(ticks, np.int64))


def _request_inference(
    port: SerialPort, info: BoardInfo, requests: Iterator[int], inputs: Any, number: int
) -> bytes:
    sample = np.ascontiguousarray(inputs).tobytes()
    answered = False
    attempts = 1 if info.state_bytes else ATTEMPTS
    for request in itertools.islice(requests, attempts):
        send_bytes(port, encode_request(INFERENCE, request, sample))
        try:
            status, payload = receive_reply(port, request, INFERENCE_DEADLINE_S)
        except TimeoutError:  # perhaps bytes were lost, and the board waits for them
            send_bytes(port, bytes(len(sample) + 16))
            continue
        answered = True
        if status == INFERENCE:
            return payload
        if status != DAMAGED:
            raise ExportError(
                f"the board refused sample {number} with status {status!r}, expected an input of its model; "
                f"{SELFTEST_REMEDY}"
            )
    if not answered:
        raise _NoAnswerError(
            f"the board did not answer for sample {number} within {INFERENCE_DEADLINE_S:.0f} s, expected an "
            "output; reset the board and try again"
        )
    raise _NoAnswerError(
        f"the serial line damaged sample {number} {ATTEMPTS} times, expected bytes with a correct CRC; use a "
        "lower --baud on both sides, or another cable"
    )
