/* A convolution and the largest of each window of its pixels: sums are compared before they are rescaled, which keeps their order. */
static void conv_2d_max_pool(const struct convolution *shape, int32_t pool_height, int32_t pool_width, const struct model_range *range,
                             const int32_t *bias, const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *in,
                             int8_t *out, column_value *columns, int32_t *largest)
{
    const int32_t length = shape->kernel_height * shape->kernel_width * shape->in_channels;
    const int32_t channels = shape->out_channels;
    const int32_t window = pool_height * pool_width;
    column_value *const second = columns + length;
    for (int32_t y = 0; y + pool_height <= shape->out_height; y += pool_height) {
        for (int32_t x = 0; x + pool_width <= shape->out_width; x += pool_width, out += channels) {
            for (int32_t pixel = 0; pixel < window; pixel += 2) {
                const int32_t next = pixel + 1 < window ? pixel + 1 : pixel;
                column_at(shape, in, y + pixel / pool_width, x + pixel % pool_width, range->input_zero, columns);
                column_at(shape, in, y + next / pool_width, x + next % pool_width, range->input_zero, second);
                const int8_t *w = weights;
                for (int32_t c = 0; c < channels; c += 2, w += 2 * length) {
                    const int32_t pair = c + 1 < channels;
                    int32_t sums[4];
                    column_products(columns, second, w, pair ? w + length : w, length, sums);
                    for (int32_t i = c; i <= c + pair; i++) {
                        const int32_t *sum = sums + 2 * (i - c);
                        const int32_t larger = sum[0] > sum[1] ? sum[0] : sum[1];
                        if (pixel == 0 || larger > largest[i]) {
                            largest[i] = larger;
                        }
                    }
                }
            }
            for (int32_t i = 0; i < channels; i++) {
                out[i] = clamp(rescale(largest[i] + bias[i], multiplier[i], shift[i]) + range->output_zero, range->low, range->high);
            }
        }
    }
}
