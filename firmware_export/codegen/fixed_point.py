"""The integer arithmetic of TensorFlow Lite Micro, bit for bit: multipliers, shifts, fixed-point functions.

A real multiplier is m * 2^(shift - 31), with m an int32 in [2^30, 2^31). A product is rounded twice. First
the high half of 2ab is rounded to nearest, a half up. Then the right shift is rounded to nearest, a half away
from zero. Raw numbers are Python integers.

Source: gemmlowp's fixed point for exp, logistic and tanh. They use a polynomial on [-1/4, 0) with factors for
the rest, and three Newton steps for 1/(1+x).
"""

import math

from edgefl.base.errors import ExportError

ONE_Q31 = (1 << 31) - 1
EXP_FACTORS = (
    (-2, 1672461947),
    (-1, 1302514674),
    (0, 790015084),
    (1, 290630308),
    (2, 39332535),
    (3, 720401),
    (4, 242),
)


def quantize_multiplier(real: float) -> tuple[int, int]:
    """Return the integer form (multiplier, shift) of a real multiplier.

    Args:
        real: the multiplier, at least 0 and below 2^31.

    Raises:
        ExportError: the multiplier is out of range or not finite.
    """
    if not 0 <= real < 2.0**31:
        raise ExportError(
            f"the scales of a layer give the multiplier {real:.3g}, expected 0 to 2^31; quantize the model "
            "again"
        )
    if real == 0.0:
        return 0, 0
    fraction, shift = math.frexp(real)
    fixed = math.floor(fraction * (1 << 31) + 0.5)
    if fixed == 1 << 31:
        fixed = fixed // 2
        shift = shift + 1
    return (0, 0) if shift < -31 else (fixed, shift)


def _wrap_int32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def multiply_high(a: int, b: int) -> int:
    """Return the high half of 2ab, rounded to nearest, a half up.

    The product of two lowest int32 saturates to the highest int32.

    Args:
        a: first factor, an int32.
        b: second factor, an int32.
    """
    return ONE_Q31 if a == b == -(1 << 31) else (a * b + (1 << 30)) >> 31


def divide_by_power(value: int, exponent: int) -> int:
    """Return value / 2^exponent, rounded to nearest, a half away from zero.

    Args:
        value: raw number.
        exponent: exponent of the divisor, at least 0.

    Raises:
        ValueError: the exponent is negative.
    """
    mask = (1 << exponent) - 1
    return (value >> exponent) + ((value & mask) > (mask >> 1) + (value < 0))


def round_to_int16(multiplier: int) -> int:
    """Return the high half of an int32 multiplier, rounded to nearest.

    Args:
        multiplier: integer multiplier from `quantize_multiplier`.
    """
    return min((multiplier + (1 << 15)) >> 16, (1 << 15) - 1)


def saturate_int16(value: int) -> int:
    """Return the int16 that is nearest to a value."""
    return min(max(value, -(1 << 15)), (1 << 15) - 1)


def multiply_high_int16(a: int, b: int) -> int:
    """Return the high half of 2ab, rounded to nearest, a half away from zero.

    Args:
        a: first factor, an int16 above the lowest one.
        b: second factor, an int16.
    """
    size = (abs(a * b) + (1 << 14)) >> 15
    return size if a * b >= 0 else -size


def rescale(value: int, multiplier: int, shift: int) -> int:
    """Return value * multiplier * 2^(shift - 31), rounded twice.

    Args:
        value: raw number. A shift to the left wraps it to an int32 before the product.
        multiplier: integer multiplier, an int32, such as from `quantize_multiplier`.
        shift: number of bits to shift. A positive shift goes left, before the product. A negative shift goes
            right, after it.
    """
    return divide_by_power(multiply_high(_wrap_int32(value << max(shift, 0)), multiplier), max(-shift, 0))


def _shift_saturating(value: int, exponent: int) -> int:
    if exponent <= 0:
        return divide_by_power(value, -exponent)
    limit = (1 << (31 - exponent)) - 1
    return ONE_Q31 if value > limit else -(1 << 31) if value < -limit else value << exponent


def _exp_near_zero(value: int) -> int:
    """Return exp of a Q0.31 number in [-1/4, 0)."""
    root = 1895147668
    third = 715827883
    x = value + (1 << 28)
    x2 = multiply_high(x, x)
    x3 = multiply_high(x2, x)
    x4 = multiply_high(x2, x2)
    rest = _shift_saturating(multiply_high(_shift_saturating(x4, -2) + x3, third) + x2, -1)
    return root + multiply_high(root, x + rest)


def exp_of_negative(value: int, integer_bits: int) -> int:
    """Return exp of a fixed-point number that is at most 0, as Q0.31.

    Args:
        value: raw number.
        integer_bits: its integer bits, at most 5.
    """
    if value == 0:
        return ONE_Q31
    quarter = 1 << (31 - integer_bits - 2)
    part = (value & (quarter - 1)) - quarter
    result = _exp_near_zero(_shift_saturating(part, integer_bits))
    for exponent, factor in EXP_FACTORS:
        if integer_bits > exponent and (part - value) & (1 << (31 - integer_bits + exponent)):
            result = multiply_high(result, factor)
    return result


def _divide_two_by_one_plus(value: int) -> int:
    """Return 2 / (1 + x) for x in [0, 1], as Q2.29."""
    half = (value + ONE_Q31 + 1) // 2
    x = 1515870810 + multiply_high(half, -1010580540)
    for _ in range(3):
        x += _shift_saturating(multiply_high(x, (1 << 29) - multiply_high(half, x)), 2)
    return x


def logistic(value: int) -> int:
    """Return 1 / (1 + exp(-x)) of a Q4.27 number, as Q0.31."""
    if value == 0:
        return 1 << 30
    positive = _shift_saturating(_divide_two_by_one_plus(exp_of_negative(-abs(value), 4)), 1)
    return positive if value > 0 else ONE_Q31 - positive


def tanh(value: int) -> int:
    """Return tanh of a Q4.27 number, as Q0.31.

    Twice the Q4.27 number has the same raw value as Q5.26.
    """
    if value == 0:
        return 0
    positive = _shift_saturating(_divide_two_by_one_plus(exp_of_negative(-abs(value), 5)) - (1 << 29), 2)
    return positive if value > 0 else -positive


def compute_input_radius(integer_bits: int, left_shift: int) -> int:
    """Return the largest input that fits `integer_bits` after the left shift.

    Args:
        integer_bits: integer bits of the shifted number, at most 31.
        left_shift: number of bits to shift, at least 0.

    Raises:
        ValueError: `left_shift` is negative, or `integer_bits` is out of range.
    """
    return math.floor(((1 << integer_bits) - 1) * (1 << (31 - integer_bits)) / (1 << left_shift))


def inverse_square_root(value: int) -> tuple[int, int]:
    """Return (multiplier, shift) of 1 / sqrt(value), computed with five Newton steps.

    Args:
        value: an integer of at least 1.

    Returns:
        The multiplier, and the shift to the right negated.
    """
    if value <= 1:
        return ONE_Q31, 0
    shift = 11
    while value >= 1 << 29:
        value = value // 4
        shift = shift + 1
    pairs = (31 - value.bit_length()) // 2 - 1
    shift -= pairs
    number = (value << 2 * pairs) >> 1
    half = _shift_saturating(number, -1)
    x = 1 << 28
    for _ in range(5):
        x3 = _shift_saturating(multiply_high(multiply_high(x, x), x), 6)
        x = _shift_saturating(multiply_high((1 << 28) + (1 << 27), x) - multiply_high(half, x3), 3)
    multiplier = multiply_high(x, 1518500250)  # the factor is the square root of a half
    return (multiplier << -shift, 0) if shift < 0 else (multiplier, -shift)
