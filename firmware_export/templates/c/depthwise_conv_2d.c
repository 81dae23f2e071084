/* Kernel elements inside the input along one axis: first to end - 1. `start` is the input position of element 0. */
static int32_t first_inside(int32_t start, int32_t dilation)
{
    return start < 0 ? (dilation - 1 - start) / dilation : 0;
}

static int32_t end_inside(int32_t start, int32_t dilation, int32_t kernel, int32_t size)
{
    const int32_t end = (size - start + dilation - 1) / dilation;
    return end < kernel ? end : kernel;
}

/* Steps of one pixel's loops over the kernel elements inside the input. */
struct depthwise_window {
    int32_t rows, columns, row_step, column_step, weight_row_step, channels, input_zero;
};

#ifdef MODEL_DSP
/* Bytes 0 and 2, and bytes 1 and 3, each added to an int16. */
static inline int16x2_t add_even_bytes(int16x2_t pair, uint32_t word)
{
    return __sxtab16(pair, (int8x4_t)word);
}

static inline int16x2_t add_odd_bytes(int16x2_t pair, uint32_t word)
{
    int16x2_t sum;
    __asm__("sxtab16 %0, %1, %2, ror #8" : "=r"(sum) : "r"(pair), "r"(word));
    return sum;
}
#endif

/* Four neighbouring channels times one kernel element, added to four sums. */
static inline void depthwise_products(const int8_t *x, const int8_t *w, int32_t zero, int32_t *sums)
{
#ifdef MODEL_DSP /* `zero` is minus the zero point, twice as int16 */
    const uint32_t inputs = load_bytes(x), kernel = load_bytes(w);
    const int16x2_t x_even = add_even_bytes(zero, inputs), w_even = even_bytes(kernel);
    const int16x2_t x_odd = add_odd_bytes(zero, inputs), w_odd = odd_bytes(kernel);
    sums[0] = __smlabb(x_even, w_even, sums[0]);
    sums[1] = __smlabb(x_odd, w_odd, sums[1]);
    sums[2] = __smlatt(x_even, w_even, sums[2]);
    sums[3] = __smlatt(x_odd, w_odd, sums[3]);
#else
    sums[0] += (x[0] - zero) * w[0];
    sums[1] += (x[1] - zero) * w[1];
    sums[2] += (x[2] - zero) * w[2];
    sums[3] += (x[3] - zero) * w[3];
#endif
}

/* Four neighbouring channels of one pixel. */
MODEL_APART static void depthwise_four(const struct depthwise_window *window, int32_t output_zero, const int32_t *bias, const int32_t *multiplier,
                                       const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out)
{
    const int32_t channels = window->channels, step = window->column_step;
    int32_t sums[4] = {bias[0], bias[1], bias[2], bias[3]};
#ifdef MODEL_DSP
    const int32_t zero = (int32_t)((uint32_t)(uint16_t)-window->input_zero * 0x10001u);
#else
    const int32_t zero = window->input_zero;
#endif
    for (int32_t ky = window->rows; ky > 0; ky--) {
        const int8_t *x = in, *w = weights;
        for (int32_t kx = window->columns; kx > 0; kx--) {
            depthwise_products(x, w, zero, sums);
            x += step;
            w += channels;
        }
        in += window->row_step;
        weights += window->weight_row_step;
    }
    out[0] = saturate(rescale(sums[0], multiplier[0], shift[0]) + output_zero);
    out[1] = saturate(rescale(sums[1], multiplier[1], shift[1]) + output_zero);
    out[2] = saturate(rescale(sums[2], multiplier[2], shift[2]) + output_zero);
    out[3] = saturate(rescale(sums[3], multiplier[3], shift[3]) + output_zero);
}

#ifdef MODEL_MVE
/* `count` neighbouring channels of one pixel, eight at a time, with sums of the even channels and of the odd ones. */
MODEL_APART static void depthwise_eights(const struct depthwise_window *window, int32_t count, int32_t output_zero, const int32_t *bias,
                                         const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out)
{
    const int32_t columns = window->columns > 0 ? window->columns : 0; /* a dilated kernel may lie outside */
    const int32_t step = window->column_step, channels = window->channels, zero = window->input_zero;
    const int32_t next_row = window->row_step - columns * step, next_weights = window->weight_row_step - columns * channels;
    const uint32x4_t every_second = vidupq_n_u32(0, 2);
    for (int32_t c = 0; c < count; c += 8) {
        const int8_t *x = in + c, *w = weights + c;
        int32x4_t even = vldrwq_gather_shifted_offset_s32(bias + c, every_second);
        int32x4_t odd = vldrwq_gather_shifted_offset_s32(bias + c + 1, every_second);
        for (int32_t row = window->rows; row > 0; row--, x += next_row, w += next_weights) {
            __asm__("wls lr, %[columns], 2f\n"
                    "1:\n\t"
                    "vldrb.s16 q0, [%[x]]\n\t"
                    "vldrb.s16 q1, [%[w]]\n\t"
                    "add %[x], %[step]\n\t"
                    "vsub.i16 q0, q0, %[zero]\n\t"
                    "add %[w], %[channels]\n\t"
                    "vmullb.s16 q2, q0, q1\n\t"
                    "vmullt.s16 q3, q0, q1\n\t"
                    "vadd.i32 %q[even], %q[even], q2\n\t"
                    "vadd.i32 %q[odd], %q[odd], q3\n\t"
                    "le lr, 1b\n"
                    "2:"
                    : [x] "+l"(x), [w] "+l"(w), [even] "+w"(even), [odd] "+w"(odd)
                    : [columns] "r"(columns), [step] "r"(step), [channels] "r"(channels), [zero] "r"(zero)
                    : "q0", "q1", "q2", "q3", "lr", "memory");
        }
        even = rescale_four(even, vldrwq_gather_shifted_offset_s32(multiplier + c, every_second),
                            vldrbq_gather_offset_s32(shift + c, every_second));
        odd = rescale_four(odd, vldrwq_gather_shifted_offset_s32(multiplier + c + 1, every_second),
                           vldrbq_gather_offset_s32(shift + c + 1, every_second));
        const int16x8_t both = vqaddq_n_s16(vqmovntq_s32(vqmovnbq_s32(vuninitializedq_s16(), even), odd), (int16_t)output_zero);
        vstrbq_s16(out + c, vreinterpretq_s16_s8(vqmovnbq_s16(vuninitializedq_s8(), both)));
    }
}
#endif

/* One filter per output channel. `multiple` output channels read one input channel. */
static void depthwise_conv_2d(const struct convolution *shape, int32_t multiple, const struct model_range *range, const int32_t *bias,
                              const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out)
{
    const int32_t channels = shape->out_channels;
    const int32_t fours = multiple == 1 ? channels / 4 * 4 : 0; /* channels that are computed four at a time */
    const int32_t zero = range->output_zero;
    int8_t *const start = out;
    struct depthwise_window window;
    window.row_step = shape->dilation_height * shape->in_width * shape->in_channels;
    window.column_step = shape->dilation_width * shape->in_channels;
    window.weight_row_step = shape->kernel_width * channels;
    window.channels = channels;
    window.input_zero = range->input_zero;
    for (int32_t y = 0; y < shape->out_height; y++) {
        const int32_t top = y * shape->stride_height - shape->pad_top;
        const int32_t first_row = first_inside(top, shape->dilation_height);
        window.rows = end_inside(top, shape->dilation_height, shape->kernel_height, shape->in_height) - first_row;
        for (int32_t x = 0; x < shape->out_width; x++, out += channels) {
            const int32_t left = x * shape->stride_width - shape->pad_left;
            const int32_t first_column = first_inside(left, shape->dilation_width);
            const int32_t row = top + first_row * shape->dilation_height, column = left + first_column * shape->dilation_width;
            const int8_t *const from = in + (row * shape->in_width + column) * shape->in_channels;
            const int8_t *const w = weights + (first_row * shape->kernel_width + first_column) * channels;
            window.columns = end_inside(left, shape->dilation_width, shape->kernel_width, shape->in_width) - first_column;
            int32_t done = 0;
#ifdef MODEL_MVE
            done = fours / 8 * 8;
            depthwise_eights(&window, done, zero, bias, multiplier, shift, w, from, out);
#endif
            for (int32_t c = done; c < fours; c += 4) {
                depthwise_four(&window, zero, bias + c, multiplier + c, shift + c, w + c, from + c, out + c);
            }
            for (int32_t c = fours; c < channels; c++) {
                int32_t sum = bias[c];
                const int8_t *a = from + c / multiple, *b = w + c;
                for (int32_t ky = window.rows; ky > 0; ky--, a += window.row_step, b += window.weight_row_step) {
                    for (int32_t kx = 0; kx < window.columns; kx++) {
                        sum += (a[kx * window.column_step] - window.input_zero) * b[kx * channels];
                    }
                }
                out[c] = saturate(rescale(sum, multiplier[c], shift[c]) + zero);
            }
        }
    }
    limit((int32_t)(out - start), range, start);
}
