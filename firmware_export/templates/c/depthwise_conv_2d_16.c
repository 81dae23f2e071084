static void depthwise_conv_2d_16(const struct convolution *shape, int32_t groups, int32_t wide, const struct model_range *range, const int32_t *bias,
                                 const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *from, int8_t *to)
{
    const model_int16 *const in = (const model_int16 *)(const void *)from;
    model_int16 *out = (model_int16 *)(void *)to;
    const int32_t channels = shape->out_channels, per_group = channels / groups, step = shape->dilation_width * groups;
    for (int32_t y = 0; y < shape->out_height; y++) {
        const int32_t top = y * shape->stride_height - shape->pad_top;
        const struct inside rows = find_inside(top, shape->dilation_height, shape->kernel_height, shape->in_height);
        for (int32_t x = 0; x < shape->out_width; x++) {
            const int32_t left = x * shape->stride_width - shape->pad_left;
            const struct inside columns = find_inside(left, shape->dilation_width, shape->kernel_width, shape->in_width);
            for (int32_t c = 0; c < channels; c++) {
                int64_t sum = bias[c];
                for (int32_t ky = rows.first; ky < rows.last; ky++) {
                    const int32_t row = top + ky * shape->dilation_height, column = left + columns.first * shape->dilation_width;
                    const model_int16 *pixel = in + (row * shape->in_width + column) * groups + c / per_group;
                    const int8_t *w = weights + (ky * shape->kernel_width + columns.first) * channels + c;
                    for (int32_t kx = columns.first; kx < columns.last; kx++, pixel += step, w += channels) {
                        sum += *pixel * *w;
                    }
                }
                *out++ = output_16(sum, wide, range, multiplier[c], shift[c]);
            }
        }
    }
}
