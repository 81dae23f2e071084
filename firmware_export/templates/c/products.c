#ifdef MODEL_MVE
/* The products of one input with four rows of weights, added to four values. 16 inputs a turn. */
static inline int32x4_t row_of_products(int32_t inputs, const int8_t *x, const int8_t *w0, const int8_t *w1, const int8_t *w2, const int8_t *w3,
                                        const int32_t *start)
{
    int32_t s0 = start[0], s1 = start[1], s2 = start[2], s3 = start[3];
    int32x4_t sums;
    __asm__("wlstp.8 lr, %[inputs], 2f\n"
            "1:\n\t"
            "vldrb.8 q0, [%[x]], #16\n\t"
            "vldrb.8 q1, [%[w0]], #16\n\t"
            "vmladava.s8 %[s0], q0, q1\n\t"
            "vldrb.8 q2, [%[w1]], #16\n\t"
            "vmladava.s8 %[s1], q0, q2\n\t"
            "vldrb.8 q3, [%[w2]], #16\n\t"
            "vmladava.s8 %[s2], q0, q3\n\t"
            "vldrb.8 q1, [%[w3]], #16\n\t"
            "vmladava.s8 %[s3], q0, q1\n\t"
            "letp lr, 1b\n"
            "2:\n\t"
            "vmov %e[sums], %[s0], %[s1]\n\t"
            "vmov %f[sums], %[s2], %[s3]"
            : [sums] "=&w"(sums), [x] "+r"(x), [w0] "+r"(w0), [w1] "+r"(w1), [w2] "+r"(w2), [w3] "+r"(w3), [s0] "+Te"(s0), [s1] "+Te"(s1),
              [s2] "+Te"(s2), [s3] "+Te"(s3)
            : [inputs] "r"(inputs)
            : "q0", "q1", "q2", "q3", "lr", "memory");
    return sums;
}
#elif defined(MODEL_DSP) && !defined(__clang__)
#define FOUR_INPUTS \
    "ldr %[even], [%[x]], #4\n\t" \
    "ldr %[a], [%[w], %[inputs]]\n\t" \
    "sxtb16 %[odd], %[even], ror #8\n\t" \
    "sxtb16 %[even], %[even]\n\t" \
    "sxtb16 %[b], %[a]\n\t" \
    "sxtb16 %[a], %[a], ror #8\n\t" \
    "smlad %[s1], %[even], %[b], %[s1]\n\t" \
    "smlad %[s1], %[odd], %[a], %[s1]\n\t" \
    "ldr %[a], [%[w]], #4\n\t" \
    "sxtb16 %[b], %[a]\n\t" \
    "sxtb16 %[a], %[a], ror #8\n\t" \
    "smlad %[s0], %[even], %[b], %[s0]\n\t" \
    "smlad %[s0], %[odd], %[a], %[s0]\n\t" \
    "ldr %[a], [%[w2], %[inputs]]\n\t" \
    "sxtb16 %[b], %[a]\n\t" \
    "sxtb16 %[a], %[a], ror #8\n\t" \
    "smlad %[s3], %[even], %[b], %[s3]\n\t" \
    "smlad %[s3], %[odd], %[a], %[s3]\n\t" \
    "ldr %[a], [%[w2]], #4\n\t" \
    "sxtb16 %[b], %[a]\n\t" \
    "sxtb16 %[a], %[a], ror #8\n\t" \
    "smlad %[s2], %[even], %[b], %[s2]\n\t" \
    "smlad %[s2], %[odd], %[a], %[s2]\n\t"
#endif

/* The products of one input with four neighbouring rows of weights. */
MODEL_APART static void four_products(int32_t inputs, const int8_t *x, const int8_t *w, int32_t *sums)
{
#ifdef MODEL_MVE
    static const int32_t start[4];
    vstrwq_s32(sums, row_of_products(inputs, x, w, w + inputs, w + 2 * inputs, w + 3 * inputs, start));
#else
    const int8_t *w2 = w + 2 * inputs;
    const int8_t *const end = x + inputs;
    int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#if defined(MODEL_DSP) && !defined(__clang__)
    const int8_t *const quads = x + inputs / 4 * 4;
    if (x != quads) { /* In assembly, because GCC spills registers with intrinsics. Clang cannot allocate the 13 registers. */
        uint32_t even, odd, a, b;
        __asm__("sub %[even], %[quads], %[x]\n\t"
                "tst %[even], #4\n\t"
                "bne 2f\n\t"
                "1:\n\t" FOUR_INPUTS "2:\n\t" FOUR_INPUTS
                "cmp %[x], %[quads]\n\t"
                "bne 1b"
                : [x] "+r"(x), [w] "+r"(w), [w2] "+r"(w2), [s0] "+r"(s0), [s1] "+r"(s1), [s2] "+r"(s2), [s3] "+r"(s3),
                  [even] "=&r"(even), [odd] "=&r"(odd), [a] "=&r"(a), [b] "=&r"(b)
                : [quads] "r"(quads), [inputs] "r"(inputs)
                : "cc", "memory");
    }
#elif defined(MODEL_DSP)
    for (const int8_t *const quads = x + inputs / 4 * 4; x != quads; x += 4, w += 4, w2 += 4) {
        const uint32_t four = load_bytes(x);
        const int16x2_t even = even_bytes(four), odd = odd_bytes(four);
        uint32_t row = load_bytes(w);
        s0 = __smlad(odd, odd_bytes(row), __smlad(even, even_bytes(row), s0));
        row = load_bytes(w + inputs);
        s1 = __smlad(odd, odd_bytes(row), __smlad(even, even_bytes(row), s1));
        row = load_bytes(w2);
        s2 = __smlad(odd, odd_bytes(row), __smlad(even, even_bytes(row), s2));
        row = load_bytes(w2 + inputs);
        s3 = __smlad(odd, odd_bytes(row), __smlad(even, even_bytes(row), s3));
    }
#endif
    const int8_t *w1 = w + inputs, *w3 = w2 + inputs;
    while (x != end) {
        const int32_t value = *x++;
        s0 += value * *w++;
        s1 += value * *w1++;
        s2 += value * *w2++;
        s3 += value * *w3++;
    }
    sums[0] = s0;
    sums[1] = s1;
    sums[2] = s2;
    sums[3] = s3;
#endif
}

MODEL_UNUSED static int32_t one_product(int32_t inputs, const int8_t *x, const int8_t *w)
{
    const int8_t *const end = x + inputs;
    int32_t sum = 0;
#ifdef MODEL_DSP
    for (const int8_t *const quads = x + inputs / 4 * 4; x != quads; x += 4, w += 4) {
        const uint32_t four = load_bytes(x);
        const uint32_t weights = load_bytes(w);
        sum = __smlad(odd_bytes(four), odd_bytes(weights), __smlad(even_bytes(four), even_bytes(weights), sum));
    }
#endif
    while (x != end) {
        sum += *x++ * *w++;
    }
    return sum;
}

/* One row of inputs times all rows of weights, first four outputs at a time, then single ones. highest: keep an output that is larger. */
MODEL_UNUSED static void row_products(int32_t inputs, int32_t outputs, int32_t zero, int32_t highest, const int32_t *bias, const int32_t *multiplier,
                         const int8_t *shift, const int8_t *weights, const int8_t *in, int8_t *out)
{
#ifdef MODEL_MVE
    for (; outputs >= 4; outputs -= 4, weights += 4 * inputs) {
        int32x4_t values = row_of_products(inputs, in, weights, weights + inputs, weights + 2 * inputs, weights + 3 * inputs, bias);
        values = saturate_four(vaddq_n_s32(rescale_four(values, vldrwq_s32(multiplier), vldrbq_s32(shift)), zero));
        vstrbq_s32(out, highest ? vmaxq_s32(values, vldrbq_s32(out)) : values);
        bias += 4;
        multiplier += 4;
        shift += 4;
        out += 4;
    }
    for (; outputs > 0; outputs--, weights += inputs) {
        const int32_t sum = one_product(inputs, in, weights);
        const int8_t value = saturate(rescale(sum + *bias++, *multiplier++, *shift++) + zero);
        *out = highest && *out > value ? *out : value;
        out++;
    }
#else
    int32_t together = 4;
    for (int32_t c = 0; c < outputs; c += together, weights += together * inputs) {
        int32_t sums[4];
        if (outputs - c >= 4) {
            four_products(inputs, in, weights, sums);
        } else {
            together = 1;
            sums[0] = one_product(inputs, in, weights);
        }
        for (int32_t i = 0; i < together; i++) {
            const int8_t value = saturate(rescale(sums[i] + bias[c + i], multiplier[c + i], shift[c + i]) + zero);
            if (!highest || value > out[c + i]) {
                out[c + i] = value;
            }
        }
    }
#endif
}
