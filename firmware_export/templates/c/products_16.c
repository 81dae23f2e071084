/* The sum of products of 16-bit inputs with 8-bit weights. 256 of them fit into 32 bits. */
static int64_t products_16(int32_t count, const model_int16 *in, const int8_t *weights)
{
    int64_t sum = 0;
    while (count > 0) {
        const int32_t together = count < 256 ? count : 256;
        int32_t part = 0;
        for (int32_t i = 0; i < together; i++) {
            part += in[i] * weights[i];
        }
        sum += part;
        in += together;
        weights += together;
        count -= together;
    }
    return sum;
}

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
