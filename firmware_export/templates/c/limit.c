/* Limit outputs to the range of the fused activation. It is rarely narrower than int8. */
static void limit(int32_t count, const struct model_range *range, int8_t *out)
{
    if (range->low > -128 || range->high < 127) {
        for (int8_t *const end = out + count; out != end; out++) {
            *out = clamp(*out, range->low, range->high);
        }
    }
}
