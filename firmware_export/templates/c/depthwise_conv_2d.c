/* One filter per output channel. `multiple` output channels read one input channel. */
static void depthwise_conv_2d(const struct convolution *shape, int32_t multiple, const struct model_range *range, const int32_t *bias,
                              const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out)
{
    const int32_t channels = shape->out_channels;
    for (int32_t y = 0; y < shape->out_height; y++) {
        for (int32_t x = 0; x < shape->out_width; x++, out += channels) {
            const int32_t top = y * shape->stride_height - shape->pad_top;
            const int32_t left = x * shape->stride_width - shape->pad_left;
            for (int32_t c = 0; c < channels; c++) {
                int32_t sum = bias[c];
                const int8_t *w = weights + c;
                for (int32_t ky = 0, row = top; ky < shape->kernel_height; ky++, row += shape->dilation_height) {
                    for (int32_t kx = 0, column = left; kx < shape->kernel_width; kx++, column += shape->dilation_width, w += channels) {
                        if (row >= 0 && row < shape->in_height && column >= 0 && column < shape->in_width) {
                            const int32_t at = (row * shape->in_width + column) * shape->in_channels + c / multiple;
                            sum += (in[at] - range->input_zero) * *w;
                        }
                    }
                }
                out[c] = clamp(rescale(sum, multiplier[c], shift[c]) + range->output_zero, range->low, range->high);
            }
        }
    }
}
