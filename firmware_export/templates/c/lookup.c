/* A function of one int8, as a table for -128 to 127. */
static void lookup(int32_t count, const int8_t *table, const int8_t *in, int8_t *out)
{
    for (int32_t i = 0; i < count; i++) {
        out[i] = table[in[i] + 128];
    }
}
