static int8_t *column_fill(int8_t *to, int32_t count, int32_t value)
{
    while (count > 0) {
        *to = (int8_t)value;
        to++;
        count--;
    }
    return to;
}

/* The kernel's inputs at output (y, x): in_channels * kernel_width * kernel_height values, padded with the input's zero point. */
MODEL_APART static void column_at(const struct convolution *shape, const int8_t *in, int32_t y, int32_t x, int32_t zero, int8_t *to)
{
    const int32_t channels = shape->in_channels;
    const int32_t width = shape->in_width;
    const int32_t left = x * shape->stride_width - shape->pad_left;
    int32_t row = y * shape->stride_height - shape->pad_top;
    const int32_t over = left + shape->kernel_width - width;
    const int32_t last = row + (shape->kernel_height - 1) * shape->dilation_height;
    if (row >= 0 && last < shape->in_height && left >= 0 && over <= 0 && shape->dilation_width == 1) { /* the row lies inside the input */
        const int32_t span = shape->kernel_width * channels, step = shape->dilation_height * width * channels;
        const int8_t *from = in + (row * width + left) * channels;
        for (int32_t ky = shape->kernel_height; ky > 0; ky--, from += step) {
            to = copy_run(to, from, span);
        }
        return;
    }
    for (int32_t ky = shape->kernel_height; ky > 0; ky--, row += shape->dilation_height) {
        const int8_t *const line = in + row * width * channels;
        if (row < 0 || row >= shape->in_height) {
            to = column_fill(to, shape->kernel_width * channels, zero);
        } else if (shape->dilation_width > 1) {
            for (int32_t kx = 0, column = left; kx < shape->kernel_width; kx++, column += shape->dilation_width) {
                const int32_t outside = column < 0 || column >= width;
                to = outside ? column_fill(to, channels, zero) : copy_run(to, line + column * channels, channels);
            }
        } else {
            const int32_t before = left < 0 ? -left : 0;
            const int32_t after = over > 0 ? over : 0;
            to = column_fill(to, before * channels, zero);
            to = copy_run(to, line + (left + before) * channels, (shape->kernel_width - before - after) * channels);
            to = column_fill(to, after * channels, zero);
        }
    }
}

/* The same inputs, in place if they are contiguous, otherwise in `scratch`. */
MODEL_INLINE const int8_t *column_read(const struct convolution *shape, const int8_t *in, int32_t y, int32_t x, int32_t length, int32_t zero,
                                 int8_t *scratch)
{
    const int32_t channels = shape->in_channels;
    const int32_t left = x * shape->stride_width - shape->pad_left;
    const int32_t row = y * shape->stride_height - shape->pad_top;
    if (shape->kernel_height == 1 && shape->dilation_width == 1 && shape->kernel_width * channels == length && left >= 0 &&
        left + shape->kernel_width <= shape->in_width && row >= 0 && row < shape->in_height) {
        return in + (row * shape->in_width + left) * channels;
    }
    column_at(shape, in, y, x, zero, scratch);
    return scratch;
}
