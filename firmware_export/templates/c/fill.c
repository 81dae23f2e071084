static void fill(int32_t count, int32_t value, int8_t *out)
{
    for (int32_t i = 0; i < count; i++) {
        out[i] = (int8_t)value;
    }
}
