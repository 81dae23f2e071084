static void depthwise_conv_2d_16(const struct convolution *shape, int32_t groups, int32_t wide, const struct model_range *range, const int32_t *bias,
                                 const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *from, int8_t *to)
{
    const model_int16 *const in = (const model_int16 *)(const void *)from;
    model_int16 *out = (model_int16 *)(void *)to;
    const int32_t channels = shape->out_channels, per_group = channels / groups;
    for (int32_t y = 0; y < shape->out_height; y++) {
        for (int32_t x = 0; x < shape->out_width; x++) {
            for (int32_t c = 0; c < channels; c++) {
                int64_t sum = bias[c];
                for (int32_t ky = 0; ky < shape->kernel_height; ky++) {
                    const int32_t row = y * shape->stride_height - shape->pad_top + ky * shape->dilation_height;
                    if (row < 0 || row >= shape->in_height) {
                        continue;
                    }
                    for (int32_t kx = 0; kx < shape->kernel_width; kx++) {
                        const int32_t column = x * shape->stride_width - shape->pad_left + kx * shape->dilation_width;
                        if (column >= 0 && column < shape->in_width) {
                            sum += in[(row * shape->in_width + column) * groups + c / per_group] * weights[(ky * shape->kernel_width + kx) * channels + c];
                        }
                    }
                }
                *out++ = output_16(sum, wide, range, multiplier[c], shift[c]);
            }
        }
    }
}
