#ifdef MODEL_DSP
/* Load four int8 of any alignment. */
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
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(pair) : "r"(word)); /* no intrinsic rotates */
    return pair;
}
#endif
