"""The distance at which an output may overwrite the input of a convolution or pooling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_export.codegen.c_convolution import compute_lead


@pytest.mark.parametrize(
    ("source", "output", "stride", "before", "lead"),
    [
        # 1x1, three channels: each pixel overwrites itself after all of its channels were written
        ((2, 2, 3), (2, 2, 3), (1, 1), (0, 0), 3),
        # 1x1, two channels to five: 20 bytes are written when the last pixel, at byte 6, is still needed
        ((2, 2, 2), (2, 2, 5), (1, 1), (0, 0), 14),
        # 3x3 SAME: pixel (3, 3) is byte 15, and needs byte 10 of pixel (2, 2)
        ((4, 4, 1), (4, 4, 1), (1, 1), (1, 1), 6),
        # 2x2 pooling: only the first pixel has no pixel before it that is no longer needed
        ((4, 4, 2), (2, 2, 2), (2, 2), (0, 0), 2),
        # 1x1, stride 2, to eight channels: 32 bytes are written, and the last pixel needs byte 10
        ((4, 4, 1), (2, 2, 8), (2, 2), (0, 0), 22),
        # The first row needs row 0 only, and so does the second one: (1, 3) needs byte 2, and is byte 7
        ((2, 4, 1), (2, 4, 1), (1, 1), (1, 1), 6),
    ],
)
def test_lead_matches_hand_computed_values(source, output, stride, before, lead) -> None:
    assert compute_lead(source, output, stride, before) == lead


@given(
    st.tuples(*[st.integers(1, 6)] * 2, st.integers(1, 3)),
    st.tuples(*[st.integers(1, 6)] * 2, st.integers(1, 3)),
    *[st.tuples(*[st.integers(1, 3)] * 2)] * 2,
    st.tuples(*[st.integers(0, 2)] * 2),
)
def test_lead_is_the_least_one_at_which_no_needed_byte_is_overwritten(
    source, output, kernel, stride, before
) -> None:
    """Read and write the bytes of both as the kernels do: of a pixel, all reads and writes mix."""
    height, width, channels = source
    pixels = [(y, x) for y in range(output[0]) for x in range(output[1])]

    def read(y, x):
        rows, columns = (
            [n for n in range(p * s - b, p * s - b + k) if 0 <= n < size]
            for p, s, b, k, size in zip((y, x), stride, before, kernel, (height, width), strict=True)
        )
        return {(r * width + c) * channels + i for r in rows for c in columns for i in range(channels)}

    def is_safe(lead):
        for number in range(len(pixels)):
            overwritten = {byte - lead for byte in range((number + 1) * output[2])}
            if any(overwritten & read(*pixel) for pixel in pixels[number:]):
                return False
        return True

    lead = compute_lead(source, output, stride, before)
    assert is_safe(lead)
    last_row, last_column = (
        (count - 1) * step - padding for count, step, padding in zip(output, stride, before, strict=False)
    )
    if 0 <= last_row < height and 0 <= last_column < width and not any(before):
        assert not is_safe(lead - 1)
