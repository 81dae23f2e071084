/* Each output sums the inputs that the stride spreads onto it. */
static void transpose_conv(const struct convolution *shape, const struct model_range *range, const int32_t *bias, const int32_t *multiplier,
                           const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out)
{
    const int32_t channels = shape->in_channels, zero = range->input_zero;
    for (int32_t y = shape->pad_top; y < shape->out_height + shape->pad_top; y++) {
        for (int32_t x = shape->pad_left; x < shape->out_width + shape->pad_left; x++, out += shape->out_channels) {
            const int8_t *kernel = weights;
            for (int32_t c = 0; c < shape->out_channels; c++, kernel += shape->kernel_height * shape->kernel_width * channels) {
                int32_t sum = bias[c];
                for (int32_t ky = y % shape->stride_height; ky < shape->kernel_height && ky <= y; ky += shape->stride_height) {
                    const int32_t row = (y - ky) / shape->stride_height;
                    for (int32_t kx = x % shape->stride_width; kx < shape->kernel_width && kx <= x; kx += shape->stride_width) {
                        const int32_t column = (x - kx) / shape->stride_width;
                        if (row < shape->in_height && column < shape->in_width) {
                            const int8_t *from = in + (row * shape->in_width + column) * channels;
                            const int8_t *w = kernel + (ky * shape->kernel_width + kx) * channels;
                            for (int32_t k = 0; k < channels; k++) {
                                sum += (from[k] - zero) * w[k];
                            }
                        }
                    }
                }
                out[c] = clamp(rescale(sum, multiplier[c], shift[c]) + range->output_zero, range->low, range->high);
            }
        }
    }
}
