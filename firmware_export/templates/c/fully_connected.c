/* rows x inputs -> rows x outputs, two outputs at a time. */
static void fully_connected(int32_t rows, int32_t inputs, int32_t outputs, const struct model_range *range, const int32_t *bias,
                            const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out)
{
    for (; rows > 0; rows--, in += inputs, out += outputs) {
        const int8_t *w0 = weights;
        for (int32_t c = 0; c < outputs; c += 2) {
            const int32_t pair = c + 1 < outputs;
            const int8_t *w1 = pair ? w0 + inputs : w0;
            const int8_t *x = in;
            int32_t s0 = bias[c], s1 = bias[c + pair], count = inputs;
            while (count >= 4) {
#ifdef MODEL_DSP
                const uint32_t v = load_bytes(x);
                const uint32_t a = load_bytes(w0);
                const uint32_t b = load_bytes(w1);
                const int16x2_t v02 = __sxtb16((int8x4_t)v);
                const int16x2_t v13 = __sxtb16((int8x4_t)(v >> 8 | v << 24));
                s0 = __smlad(__sxtb16((int8x4_t)a), v02, s0);
                s1 = __smlad(__sxtb16((int8x4_t)b), v02, s1);
                s0 = __smlad(__sxtb16((int8x4_t)(a >> 8 | a << 24)), v13, s0);
                s1 = __smlad(__sxtb16((int8x4_t)(b >> 8 | b << 24)), v13, s1);
#else
                for (int32_t i = 0; i < 4; i++) {
                    s0 += x[i] * w0[i];
                    s1 += x[i] * w1[i];
                }
#endif
                x += 4;
                w0 += 4;
                w1 += 4;
                count -= 4;
            }
            while (count > 0) {
                s0 += *x * *w0;
                s1 += *x * *w1;
                x++;
                w0++;
                w1++;
                count--;
            }
            out[c] = clamp(rescale(s0, multiplier[c], shift[c]) + range->output_zero, range->low, range->high);
            if (pair) {
                out[c + 1] = clamp(rescale(s1, multiplier[c + 1], shift[c + 1]) + range->output_zero, range->low, range->high);
            }
            w0 = w1;
        }
    }
}
