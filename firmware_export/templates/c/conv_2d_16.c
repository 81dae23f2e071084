/* The inputs of a kernel at (top, left), with zeros outside the input. */
static void copy_window(const struct convolution *shape, const model_int16 *in, int32_t top, int32_t left, int32_t channels, model_int16 *to)
{
    for (int32_t ky = 0; ky < shape->kernel_height; ky++) {
        for (int32_t kx = 0; kx < shape->kernel_width; kx++) {
            const int32_t row = top + ky * shape->dilation_height, column = left + kx * shape->dilation_width;
            const int32_t outside = row < 0 || row >= shape->in_height || column < 0 || column >= shape->in_width;
            const model_int16 *const pixel = in + (outside ? 0 : row * shape->in_width + column) * shape->in_channels;
            for (int32_t c = 0; c < channels; c++) {
                *to++ = outside ? 0 : pixel[c];
            }
        }
    }
}

/* A kernel of one pixel reads its inputs in place. Others copy them to the scratch memory. */
static void conv_2d_16(const struct convolution *shape, int32_t groups, int32_t wide, const struct model_range *range, const int32_t *bias,
                       const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *from, int8_t *to, int8_t *scratch)
{
    const model_int16 *const in = (const model_int16 *)(const void *)from;
    model_int16 *out = (model_int16 *)(void *)to;
    const int32_t channels = shape->in_channels / groups, per_group = shape->out_channels / groups;
    const int32_t length = shape->kernel_height * shape->kernel_width * channels;
    const int32_t in_place = groups == 1 && shape->kernel_height * shape->kernel_width == 1 && shape->pad_top + shape->pad_left == 0;
    for (int32_t y = 0; y < shape->out_height; y++) {
        for (int32_t x = 0; x < shape->out_width; x++) {
            for (int32_t group = 0; group < groups; group++) {
                const int32_t top = y * shape->stride_height - shape->pad_top, left = x * shape->stride_width - shape->pad_left;
                model_int16 *const window = (model_int16 *)(void *)scratch;
                const model_int16 *start = window;
                if (in_place) {
                    start = in + (top * shape->in_width + left) * channels;
                } else {
                    copy_window(shape, in + group * channels, top, left, channels, window);
                }
                for (int32_t c = group * per_group; c < (group + 1) * per_group; c++) {
                    *out++ = output_16(products_16(length, start, weights + c * length) + bias[c], wide, range, multiplier[c], shift[c]);
                }
            }
        }
    }
}
