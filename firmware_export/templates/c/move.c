/* Eight bytes of any type. */
#if defined(__GNUC__)
typedef uint64_t __attribute__((may_alias)) eight_bytes;
#else
typedef uint64_t eight_bytes;
#endif

/* Copy groups of eight bytes from one place of the arena to another one, which may overlap. */
static void move(int32_t count, const int8_t *in, int8_t *out)
{
    const eight_bytes *const from = (const void *)in;
    eight_bytes *const to = (void *)out;
    if ((uintptr_t)out < (uintptr_t)in) {
        for (int32_t i = 0; i < count; i++) {
            to[i] = from[i];
        }
    } else {
        while (count > 0) {
            count--;
            to[count] = from[count];
        }
    }
}
