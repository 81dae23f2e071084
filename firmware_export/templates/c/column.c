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

#ifdef MODEL_DSP
/* The same inputs, in place if they are contiguous, otherwise in `scratch`. */
static const int8_t *column_read(const struct convolution *shape, const int8_t *in, int32_t y, int32_t x, int32_t length, int32_t zero,
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

/* Two pairs of int16, aligned to eight bytes, so that one instruction stores them. */
typedef uint64_t __attribute__((may_alias)) two_pairs;

static inline void store_pairs(int16_t *to, int16x2_t first, int16x2_t second)
{
    *(two_pairs *)(void *)to = (uint32_t)first | (uint64_t)(uint32_t)second << 32;
}

/* Four columns as int16, interleaved by four values. Of four values, the first and third come first, then the second and fourth. */
static void column_widen(const int8_t *from, int32_t length, int16_t *to)
{
    const int8_t *const end = from + length;
    for (; from != end; from += 4, to += 16) {
        const uint32_t word = load_bytes(from);
        store_pairs(to, even_bytes(word), odd_bytes(word));
    }
}

#define FOUR_WEIGHTS \
    "ldr %[even], [%[weights]], #4\n\t" \
    "ldrd %[x], %[y], [%[columns]], #8\n\t" \
    "sxtb16 %[odd], %[even], ror #8\n\t" \
    "sxtb16 %[even], %[even]\n\t" \
    "smlad %[s0], %[even], %[x], %[s0]\n\t" \
    "smlad %[s0], %[odd], %[y], %[s0]\n\t" \
    "ldrd %[x], %[y], [%[columns]], #8\n\t" \
    "smlad %[s1], %[even], %[x], %[s1]\n\t" \
    "smlad %[s1], %[odd], %[y], %[s1]\n\t" \
    "ldrd %[x], %[y], [%[columns]], #8\n\t" \
    "smlad %[s2], %[even], %[x], %[s2]\n\t" \
    "smlad %[s2], %[odd], %[y], %[s2]\n\t" \
    "ldrd %[x], %[y], [%[columns]], #8\n\t" \
    "smlad %[s3], %[even], %[x], %[s3]\n\t" \
    "smlad %[s3], %[odd], %[y], %[s3]\n\t"

/* Four columns times one channel's weights, eight weights a turn. In assembly, because the compiler splits the loads of two words, which is
   25% slower. */
static inline void column_products(const int16_t *columns, const int8_t *weights, int32_t length, int32_t *sums)
{
    const int8_t *const end = weights + length;
    int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    uint32_t even, odd, x, y;
    __asm__("sub %[even], %[end], %[weights]\n\t"
            "tst %[even], #4\n\t"
            "bne 2f\n\t"
            "1:\n\t" FOUR_WEIGHTS "2:\n\t" FOUR_WEIGHTS
            "cmp %[weights], %[end]\n\t"
            "bne 1b"
            : [weights] "+r"(weights), [columns] "+r"(columns), [s0] "+r"(s0), [s1] "+r"(s1), [s2] "+r"(s2), [s3] "+r"(s3),
              [even] "=&r"(even), [odd] "=&r"(odd), [x] "=&r"(x), [y] "=&r"(y)
            : [end] "r"(end)
            : "cc", "memory");
    sums[0] = s0;
    sums[1] = s1;
    sums[2] = s2;
    sums[3] = s3;
}
#else
/* Four consecutive columns times one channel's weights. */
static inline void column_products(const int8_t *columns, const int8_t *weights, int32_t length, int32_t *sums)
{
    const int8_t *x0 = columns, *x1 = x0 + length, *x2 = x1 + length, *x3 = x2 + length;
    const int8_t *const end = weights + length;
    int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    while (weights != end) {
        const int32_t w = *weights++;
        s0 += w * *x0++;
        s1 += w * *x1++;
        s2 += w * *x2++;
        s3 += w * *x3++;
    }
    sums[0] = s0;
    sums[1] = s1;
    sums[2] = s2;
    sums[3] = s3;
}
#endif
