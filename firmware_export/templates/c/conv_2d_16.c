/* Neighbouring inputs of a row are one run of products, unless there are groups or a dilation. */
static void conv_2d_16(const struct convolution *shape, int32_t groups, int32_t wide, const struct model_range *range, const int32_t *bias,
                       const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *from, int8_t *to)
{
    const model_int16 *const in = (const model_int16 *)(const void *)from;
    model_int16 *out = (model_int16 *)(void *)to;
    const int32_t channels = shape->in_channels / groups, per_group = shape->out_channels / groups;
    const int32_t step = shape->dilation_width, together = groups == 1 && step == 1;
    for (int32_t y = 0; y < shape->out_height; y++) {
        for (int32_t x = 0; x < shape->out_width; x++) {
            const int8_t *w = weights;
            const int32_t left = x * shape->stride_width - shape->pad_left;
            int32_t first = 0, last = shape->kernel_width; /* columns of the kernel inside the input */
            while (first < last && left + first * step < 0) {
                first++;
            }
            while (last > first && left + (last - 1) * step >= shape->in_width) {
                last--;
            }
            for (int32_t c = 0; c < shape->out_channels; c++) {
                int64_t sum = bias[c];
                for (int32_t ky = 0; ky < shape->kernel_height; ky++, w += shape->kernel_width * channels) {
                    const int32_t row = y * shape->stride_height - shape->pad_top + ky * shape->dilation_height;
                    if (row < 0 || row >= shape->in_height) {
                        continue;
                    }
                    const model_int16 *const line = in + row * shape->in_width * shape->in_channels + c / per_group * channels;
                    for (int32_t kx = first; kx < last; kx += together ? last - first : 1) {
                        sum += products_16((together ? last - first : 1) * channels, line + (left + kx * step) * shape->in_channels, w + kx * channels);
                    }
                }
                *out++ = output_16(sum, wide, range, multiplier[c], shift[c]);
            }
        }
    }
}
