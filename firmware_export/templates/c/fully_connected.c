/* rows x inputs -> rows x outputs, four outputs at a time, then one at a time. */
static void fully_connected(int32_t rows, int32_t inputs, int32_t outputs, const struct model_range *range, const int32_t *bias,
                            const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out)
{
    for (; rows > 0; rows--, in += inputs) {
        const int8_t *w = weights;
        int32_t c = 0, together;
        for (; c < outputs; c += together) {
            int32_t sums[4] = {0, 0, 0, 0};
            const int8_t *x = in;
            const int8_t *const end = in + inputs;
            together = outputs - c < 4 ? 1 : 4;
            if (together == 4) {
                const int8_t *w2 = w + 2 * inputs;
                const int8_t *const quads = in + inputs / 4 * 4;
                int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
                while (x != quads) {
#ifdef MODEL_DSP
                    const uint32_t v = load_bytes(x);
                    const int16x2_t even = even_bytes(v);
                    const int16x2_t odd = odd_bytes(v);
                    uint32_t four = load_bytes(w);
                    s0 = __smlad(odd_bytes(four), odd, __smlad(even_bytes(four), even, s0));
                    four = load_bytes(w + inputs);
                    s1 = __smlad(odd_bytes(four), odd, __smlad(even_bytes(four), even, s1));
                    four = load_bytes(w2);
                    s2 = __smlad(odd_bytes(four), odd, __smlad(even_bytes(four), even, s2));
                    four = load_bytes(w2 + inputs);
                    s3 = __smlad(odd_bytes(four), odd, __smlad(even_bytes(four), even, s3));
#else
                    for (int32_t i = 0; i < 4; i++) {
                        s0 += x[i] * w[i];
                        s1 += x[i] * w[i + inputs];
                        s2 += x[i] * w2[i];
                        s3 += x[i] * w2[i + inputs];
                    }
#endif
                    x += 4;
                    w += 4;
                    w2 += 4;
                }
                while (x != end) {
                    s0 += *x * *w;
                    s1 += *x * w[inputs];
                    s2 += *x * *w2;
                    s3 += *x * w2[inputs];
                    x++;
                    w++;
                    w2++;
                }
                sums[0] = s0;
                sums[1] = s1;
                sums[2] = s2;
                sums[3] = s3;
                w = w2 + inputs;
            } else {
#ifdef MODEL_DSP
                while (end - x >= 4) {
                    const uint32_t v = load_bytes(x);
                    const uint32_t four = load_bytes(w);
                    sums[0] = __smlad(odd_bytes(four), odd_bytes(v), __smlad(even_bytes(four), even_bytes(v), sums[0]));
                    x += 4;
                    w += 4;
                }
#endif
                while (x != end) {
                    sums[0] += *x++ * *w++;
                }
            }
            for (int32_t i = 0; i < together; i++) {
                const int32_t at = c + i;
                *out++ = clamp(rescale(sums[i] + bias[at], multiplier[at], shift[at]) + range->output_zero, range->low, range->high);
            }
        }
    }
}
