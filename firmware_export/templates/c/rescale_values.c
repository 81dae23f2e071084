#if defined(__GNUC__)
typedef int32_t __attribute__((may_alias)) model_int32;
#else
typedef int32_t model_int32;
#endif

/* Values of another scale, of 8 or 16 bits, as values of 8, 16 or 32 bits. Negative values have a multiplier of their own. */
static void rescale_values(int32_t count, int32_t in_bytes, int32_t out_bytes, const struct model_rescale *scale, const int8_t *in, int8_t *out)
{
    for (int32_t i = 0; i < count; i++, in += in_bytes, out += out_bytes) {
        int32_t value = (in_bytes == 1 ? *in : *(const model_int16 *)(const void *)in) - scale->input_zero;
        if (value >= 0) {
            value = rescale(value, scale->multiplier, scale->shift);
        } else {
            value = rescale(value, scale->negative_multiplier, scale->negative_shift);
        }
        value = (int32_t)((uint32_t)value + (uint32_t)scale->output_zero);
        value = value < scale->low ? scale->low : value > scale->high ? scale->high : value;
        if (out_bytes == 1) {
            *out = (int8_t)value;
        } else if (out_bytes == 2) {
            *(model_int16 *)(void *)out = (int16_t)value;
        } else {
            *(model_int32 *)(void *)out = value;
        }
    }
}
