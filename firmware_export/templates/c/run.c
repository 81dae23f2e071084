/* Copy bytes that follow one another. Return the end of the copy. */
MODEL_INLINE int8_t *copy_run(int8_t *to, const int8_t *from, int32_t count)
{
#ifdef MODEL_MVE
    int8_t *const end = to + count;
    __asm__ volatile("wlstp.8 lr, %[count], 2f\n"
                     "1:\n\t"
                     "vldrb.8 q0, [%[from]], #16\n\t"
                     "vstrb.8 q0, [%[to]], #16\n\t"
                     "letp lr, 1b\n"
                     "2:"
                     : [to] "+r"(to), [from] "+r"(from)
                     : [count] "r"(count)
                     : "q0", "lr", "memory");
    return end;
#else
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
#endif
}
