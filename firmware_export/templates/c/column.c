struct convolution {
    int32_t in_height, in_width, in_channels, out_height, out_width, out_channels;
    int32_t kernel_height, kernel_width, stride_height, stride_width, dilation_height, dilation_width, pad_top, pad_left;
};

#ifdef MODEL_DSP
typedef int16_t column_value;
#else
typedef int8_t column_value;
#endif

static column_value *column_fill(column_value *to, int32_t count, int32_t value)
{
    while (count > 0) {
        *to = (column_value)value;
        to++;
        count--;
    }
    return to;
}

static column_value *column_copy(column_value *to, const int8_t *from, int32_t count)
{
#ifdef MODEL_DSP
    while (count >= 4) {
        uint32_t word = load_bytes(from);
        uint32_t even = (uint32_t)__sxtb16((int8x4_t)word);
        uint32_t odd = (uint32_t)__sxtb16((int8x4_t)(word >> 8 | word << 24));
        uint32_t pairs[2];
        pairs[0] = (even & 0xFFFFu) | (odd << 16);
        pairs[1] = (odd & 0xFFFF0000u) | (even >> 16);
        __builtin_memcpy(to, pairs, sizeof pairs);
        from += 4;
        to += 4;
        count -= 4;
    }
#endif
    while (count > 0) {
        *to = *from;
        to++;
        from++;
        count--;
    }
    return to;
}

/* What the kernel sees at output (y, x): in_channels * kernel_width * kernel_height values, the input's zero outside of the input. */
static void column_at(const struct convolution *shape, const int8_t *in, int32_t y, int32_t x, int32_t zero, column_value *to)
{
    const int32_t channels = shape->in_channels;
    const int32_t left = x * shape->stride_width - shape->pad_left;
    int32_t row = y * shape->stride_height - shape->pad_top;
    for (int32_t ky = 0; ky < shape->kernel_height; ky++, row += shape->dilation_height) {
        if (row < 0 || row >= shape->in_height) {
            to = column_fill(to, shape->kernel_width * channels, zero);
            continue;
        }
        const int8_t *line = in + row * shape->in_width * channels;
        if (shape->dilation_width == 1) {
            const int32_t before = left < 0 ? -left : 0;
            const int32_t over = left + shape->kernel_width - shape->in_width;
            const int32_t after = over > 0 ? over : 0;
            to = column_fill(to, before * channels, zero);
            to = column_copy(to, line + (left + before) * channels, (shape->kernel_width - before - after) * channels);
            to = column_fill(to, after * channels, zero);
            continue;
        }
        for (int32_t kx = 0, column = left; kx < shape->kernel_width; kx++, column += shape->dilation_width) {
            to = column < 0 || column >= shape->in_width ? column_fill(to, channels, zero) : column_copy(to, line + column * channels, channels);
        }
    }
}

/* Two columns times the weights of two channels. Within each four weights the middle two are exchanged (see the generator). */
static inline void column_products(const column_value *x0, const column_value *x1, const int8_t *w0, const int8_t *w1, int32_t count,
                                   int32_t *sums)
{
    int32_t s00 = 0, s01 = 0, s10 = 0, s11 = 0;
    while (count >= 4) {
#ifdef MODEL_DSP
        const uint32_t a = load_bytes(w0);
        const uint32_t b = load_bytes(w1);
        const int16x2_t a01 = __sxtb16((int8x4_t)a);
        const int16x2_t a23 = __sxtb16((int8x4_t)(a >> 8 | a << 24));
        const int16x2_t b01 = __sxtb16((int8x4_t)b);
        const int16x2_t b23 = __sxtb16((int8x4_t)(b >> 8 | b << 24));
        int16x2_t x = load_pair(x0);
        s00 = __smlad(a01, x, s00);
        s10 = __smlad(b01, x, s10);
        x = load_pair(x0 + 2);
        s00 = __smlad(a23, x, s00);
        s10 = __smlad(b23, x, s10);
        x = load_pair(x1);
        s01 = __smlad(a01, x, s01);
        s11 = __smlad(b01, x, s11);
        x = load_pair(x1 + 2);
        s01 = __smlad(a23, x, s01);
        s11 = __smlad(b23, x, s11);
#else
        for (int32_t i = 0; i < 4; i++) {
            const int32_t j = i == 1 ? 2 : i == 2 ? 1 : i;
            s00 += x0[i] * w0[j];
            s01 += x1[i] * w0[j];
            s10 += x0[i] * w1[j];
            s11 += x1[i] * w1[j];
        }
#endif
        x0 += 4;
        x1 += 4;
        w0 += 4;
        w1 += 4;
        count -= 4;
    }
    while (count > 0) {
        s00 += *x0 * *w0;
        s01 += *x1 * *w0;
        s10 += *x0 * *w1;
        s11 += *x1 * *w1;
        x0++;
        x1++;
        w0++;
        w1++;
        count--;
    }
    sums[0] = s00;
    sums[1] = s01;
    sums[2] = s10;
    sums[3] = s11;
}
