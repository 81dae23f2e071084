#ifndef MODEL_MVE
/* Four columns times all channels: `together` output pixels, each the maximum of a window of one, two or four columns. Sums are compared
   before they are rescaled, because rescaling preserves their order. */
MODEL_APART static void conv_channels(const void *columns, int32_t length, int32_t channels, int32_t window, int32_t together, int32_t zero,
                                      const int32_t *bias, const int32_t *multiplier, const int8_t *shift, const int8_t *weights, int8_t *out)
{
    for (int32_t c = 0; c < channels; c++, weights += length) {
        int32_t sums[4];
        column_products(columns, weights, length, sums);
        if (window > 1) {
            sums[0] = sums[1] > sums[0] ? sums[1] : sums[0];
            sums[1] = sums[3] > sums[2] ? sums[3] : sums[2];
            if (window == 4) {
                sums[0] = sums[1] > sums[0] ? sums[1] : sums[0];
            }
        }
        const int32_t add = bias[c], times = multiplier[c], by = shift[c];
        int8_t *to = out + c;
        if (by < 0) {
            for (int32_t i = 0; i < together; i++, to += channels) {
                *to = saturate(rescale_down(sums[i] + add, times, -by) + zero);
            }
        } else {
            for (int32_t i = 0; i < together; i++, to += channels) {
                *to = saturate(rescale_up(sums[i] + add, times, by) + zero);
            }
        }
    }
}
#endif

/* A convolution with max pooling over windows of pool_height x pool_width pixels (one, two or four). Four pixels are computed together.
   columns: scratch memory for the four as int16, and for one as bytes unless all columns lie in the input. */
static void conv_2d(const struct convolution *shape, int32_t pool_height, int32_t pool_width, int32_t length, const struct model_range *range,
                    const int32_t *bias, const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out,
                    void *columns)
{
#ifdef MODEL_MVE /* all channels of a pixel, because four channels lie together and four pixels do not */
    conv_2d_by_pixel(shape, pool_height, pool_width, length, range, bias, multiplier, shift, weights, in, out, columns);
#else
    const int32_t window = pool_height * pool_width;
    const int32_t channels = shape->out_channels;
    const int32_t width = shape->out_width / pool_width;
    int32_t left = width * (shape->out_height / pool_height);
    int8_t *const start = out;
    int32_t x = 0, y = 0;
    while (left > 0) {
        const int32_t together = window == 4 ? 1 : window == 2 ? left > 1 ? 2 : 1 : left > 3 ? 4 : left;
        int32_t pixel = 0;
        for (int32_t i = 0; i < together; i++) {
            for (int32_t row = 0; row < pool_height; row++) {
                for (int32_t column = 0; column < pool_width; column++, pixel++) {
#ifdef MODEL_DSP
                    int16_t *const to = columns;
                    const int8_t *const bytes = column_read(shape, in, y * pool_height + row, x * pool_width + column, length,
                                                            range->input_zero, (int8_t *)columns + 8 * length);
                    column_widen(bytes, length, to + 4 * pixel);
#else
                    int8_t *const to = columns;
                    column_at(shape, in, y * pool_height + row, x * pool_width + column, range->input_zero, to + pixel * length);
#endif
                }
            }
            if (++x == width) {
                x = 0;
                y++;
            }
        }
        conv_channels(columns, length, channels, window, together, range->output_zero, bias, multiplier, shift, weights, out);
        out += together * channels;
        left -= together;
    }
    limit(channels * width * (shape->out_height / pool_height), range, start);
#endif
}
