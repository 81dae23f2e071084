/* rows x inputs -> rows x outputs, first four outputs at a time, then single ones. */
static void fully_connected(int32_t rows, int32_t inputs, int32_t outputs, const struct model_range *range, const int32_t *bias,
                            const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out)
{
    const int32_t zero = range->output_zero;
    int8_t *const start = out;
    for (; rows > 0; rows--, in += inputs) {
        const int8_t *w = weights;
        int32_t together = 4;
        for (int32_t c = 0; c < outputs; c += together, w += together * inputs) {
            int32_t sums[4];
            if (outputs - c >= 4) {
                four_products(inputs, in, w, sums);
            } else {
                together = 1;
                sums[0] = one_product(inputs, in, w);
            }
            for (int32_t i = 0; i < together; i++) {
                *out++ = saturate(rescale(sums[i] + bias[c + i], multiplier[c + i], shift[c + i]) + zero);
            }
        }
    }
    limit((int32_t)(out - start), range, start);
}
