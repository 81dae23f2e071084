static int8_t *column_fill(int8_t *to, int32_t count, int32_t value)
{
    while (count > 0) {
        *to = (int8_t)value;
        to++;
        count--;
    }
    return to;
}

static inline int8_t *column_copy(int8_t *to, const int8_t *from, int32_t count)
{
#ifdef MODEL_MVE
    int8_t *const end = to + count;
    __asm__ volatile("wlstp.8 lr, %[count], 2f\n"
                     "1:\n\t"
                     "vldrb.8 q0, [%[from]], #16\n\t"
                     "vstrb.8 q0, [%[to]], #16\n\t"
                     "letp lr, 1b\n"
                     "2:"
                     : [to] "+r"(to), [from] "+r"(from)
                     : [count] "r"(count)
                     : "q0", "lr", "memory");
    return end;
#else
#ifdef __ARM_FEATURE_UNALIGNED
    if (count >= 4) { /* copy words; the last word may overlap the one before it */
        int8_t *const last = to + count - 4;
        const int8_t *const from_last = from + count - 4;
        while (to < last) {
            __builtin_memcpy(to, from, 4);
            from += 4;
            to += 4;
        }
        __builtin_memcpy(last, from_last, 4);
        return last + 4;
    }
#endif
    while (count > 0) {
        *to = *from;
        to++;
        from++;
        count--;
    }
    return to;
#endif
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
            to = column_copy(to, from, span);
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
                to = outside ? column_fill(to, channels, zero) : column_copy(to, line + column * channels, channels);
            }
        } else {
            const int32_t before = left < 0 ? -left : 0;
            const int32_t after = over > 0 ? over : 0;
            to = column_fill(to, before * channels, zero);
            to = column_copy(to, line + (left + before) * channels, (shape->kernel_width - before - after) * channels);
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
