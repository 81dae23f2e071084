#ifndef MODEL_MVE
#ifdef MODEL_DSP
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
   25% slower. Clang at -O3 inlines it where too few registers are left. */
#ifdef __clang__
MODEL_APART static
#else
static inline
#endif
void column_products(const int16_t *columns, const int8_t *weights, int32_t length, int32_t *sums)
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
#endif
