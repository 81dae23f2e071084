/* rows x inputs -> rows x outputs */
static void fully_connected(int32_t rows, int32_t inputs, int32_t outputs, const struct model_range *range, const int32_t *bias,
                            const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out)
{
    int8_t *const start = out;
    for (; rows > 0; rows--, in += inputs, out += outputs) {
        row_products(inputs, outputs, range->output_zero, 0, bias, multiplier, shift, weights, in, out);
    }
    limit((int32_t)(out - start), range, start);
}
