/* rows x inputs -> rows x outputs */
static void fully_connected_16(int32_t wide, int32_t rows, int32_t inputs, int32_t outputs, const struct model_range *range, const int32_t *bias,
                               const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *from, int8_t *to)
{
    const model_int16 *in = (const model_int16 *)(const void *)from;
    model_int16 *out = (model_int16 *)(void *)to;
    for (; rows > 0; rows--, in += inputs) {
        for (int32_t c = 0; c < outputs; c++) {
            *out++ = output_16(products_16(inputs, in, weights + c * inputs) + bias[c], wide, range, multiplier[c], shift[c]);
        }
    }
}
