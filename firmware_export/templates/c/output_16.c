/* The output of a sum. With `wide` it has 64 bits and the multiplier has 16, otherwise the sum wraps around at 32 bits. */
static int16_t output_16(int64_t sum, int32_t wide, const struct model_range *range, int32_t multiplier, int32_t shift)
{
    int32_t value;
    if (wide) {
        const int32_t right = 15 - shift;
        value = (int32_t)((sum * multiplier + (INT64_C(1) << (right - 1))) >> right);
    } else {
        value = rescale((int32_t)sum, multiplier, shift);
    }
    return clamp_16(value, range->low, range->high);
}
