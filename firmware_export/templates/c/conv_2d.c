/* A convolution, two output pixels and two channels at a time. */
static void conv_2d(const struct convolution *shape, const struct model_range *range, const int32_t *bias, const int32_t *multiplier,
                    const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out, column_value *columns)
{
    const int32_t length = shape->kernel_height * shape->kernel_width * shape->in_channels;
    const int32_t channels = shape->out_channels;
    const int32_t pixels = shape->out_height * shape->out_width;
    column_value *const second = columns + length;
    int32_t y = 0, x = 0;
    for (int32_t pixel = 0; pixel < pixels; pixel += 2, out += 2 * channels) {
        const int32_t both = pixel + 1 < pixels;
        column_value *to = columns;
        for (int32_t i = 0; i <= both; i++, to = second) {
            column_at(shape, in, y, x, range->input_zero, to);
            if (++x == shape->out_width) {
                x = 0;
                y++;
            }
        }
        const int8_t *w = weights;
        for (int32_t c = 0; c < channels; c += 2, w += 2 * length) {
            const int32_t pair = c + 1 < channels;
            int32_t sums[4];
            column_products(columns, both ? second : columns, w, pair ? w + length : w, length, sums);
            for (int32_t i = c; i <= c + pair; i++) {
                const int32_t *sum = sums + 2 * (i - c);
                out[i] = clamp(rescale(sum[0] + bias[i], multiplier[i], shift[i]) + range->output_zero, range->low, range->high);
                if (both) {
                    out[i + channels] = clamp(rescale(sum[1] + bias[i], multiplier[i], shift[i]) + range->output_zero, range->low, range->high);
                }
            }
        }
    }
}
