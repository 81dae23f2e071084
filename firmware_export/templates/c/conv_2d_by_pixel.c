/* Like conv_2d, one pixel after the other. column: scratch memory for one column, which pixels that lie in the input do not need. */
MODEL_UNUSED static void conv_2d_by_pixel(const struct convolution *shape, int32_t pool_height, int32_t pool_width, int32_t length,
                                          const struct model_range *range, const int32_t *bias, const int32_t *multiplier, const int8_t *shift,
                                          const int8_t *weights, const int8_t *in, int8_t *out, int8_t *column)
{
    const int32_t channels = shape->out_channels, zero = range->output_zero;
    const int32_t height = shape->out_height / pool_height, width = shape->out_width / pool_width;
    int8_t *const start = out;
    for (int32_t y = 0; y < height; y++) {
        for (int32_t x = 0; x < width; x++, out += channels) {
            for (int32_t i = 0; i < pool_height * pool_width; i++) {
                const int8_t *const pixel = column_read(shape, in, y * pool_height + i / pool_width, x * pool_width + i % pool_width, length,
                                                        range->input_zero, column);
                row_products(length, channels, zero, i, bias, multiplier, shift, weights, pixel, out);
            }
        }
    }
    limit(channels * height * width, range, start);
}
