#ifdef MODEL_DSP
/* Four int8 of any alignment. */
static inline uint32_t load_bytes(const int8_t *from)
{
    uint32_t word;
    __builtin_memcpy(&word, from, sizeof word);
    return word;
}

/* Bytes 0 and 2, and bytes 1 and 3, as two int16. */
static inline int16x2_t even_bytes(uint32_t word)
{
    return __sxtb16((int8x4_t)word);
}

static inline int16x2_t odd_bytes(uint32_t word)
{
    int16x2_t pair;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(pair) : "r"(word)); /* the intrinsics have no form that rotates */
    return pair;
}

/* Two pairs of int16 at a multiple of eight bytes, which one instruction loads or stores. */
typedef uint64_t __attribute__((may_alias)) two_pairs;

static inline uint64_t load_pairs(const int16_t *from)
{
    return *(const two_pairs *)(const void *)from;
}

static inline void store_pairs(int16_t *to, int16x2_t first, int16x2_t second)
{
    *(two_pairs *)(void *)to = (uint32_t)first | (uint64_t)(uint32_t)second << 32;
}
#endif
