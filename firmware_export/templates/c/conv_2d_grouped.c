/* A convolution whose output channels depend on the input channels of their group. column: scratch memory for the inputs of one group. */
static void conv_2d_grouped(const struct convolution *shape, int32_t groups, int32_t length, const struct model_range *range, const int32_t *bias,
                            const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out, int8_t *column)
{
    const int32_t inputs = shape->in_channels / groups, outputs = shape->out_channels / groups;
    int8_t *const start = out;
    for (int32_t y = 0; y < shape->out_height; y++) {
        for (int32_t x = 0; x < shape->out_width; x++) {
            for (int32_t group = 0; group < groups; group++, out += outputs) {
                int8_t *to = column;
                for (int32_t ky = 0; ky < shape->kernel_height; ky++) {
                    const int32_t row = y * shape->stride_height - shape->pad_top + ky * shape->dilation_height;
                    for (int32_t kx = 0; kx < shape->kernel_width; kx++) {
                        const int32_t left = x * shape->stride_width - shape->pad_left + kx * shape->dilation_width;
                        const int32_t inside = row >= 0 && row < shape->in_height && left >= 0 && left < shape->in_width;
                        to = inside ? copy_run(to, in + (row * shape->in_width + left) * shape->in_channels + group * inputs, inputs)
                                    : column_fill(to, inputs, range->input_zero);
                    }
                }
                row_products(length, outputs, range->output_zero, 0, bias + group * outputs, multiplier + group * outputs,
                             shift + group * outputs, weights + group * outputs * length, column, out);
            }
        }
    }
    limit((int32_t)(out - start), range, start);
}
