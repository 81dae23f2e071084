#ifdef MODEL_DSP
/* Four int8 of any alignment, and two int16 of even alignment, each as one word. */
static inline uint32_t load_bytes(const int8_t *from)
{
    uint32_t word;
    __builtin_memcpy(&word, from, sizeof word);
    return word;
}

static inline int16x2_t load_pair(const int16_t *from)
{
    int16x2_t pair;
    __builtin_memcpy(&pair, from, sizeof pair);
    return pair;
}
#endif
