/* The same as mul() for values of 16 bits. */
static void mul_16(const struct elementwise *loop, const struct model_mul *scale, const int8_t *a, const int8_t *b, int8_t *to)
{
    const struct model_mul s = *scale;
    model_int16 *out = (model_int16 *)(void *)to;
    for (int32_t i = 0; i < loop->count[0]; i++) {
        for (int32_t j = 0; j < loop->count[1]; j++) {
            for (int32_t k = 0; k < loop->count[2]; k++) {
                const model_int16 *x = (const model_int16 *)(const void *)a + i * loop->step_a[0] + j * loop->step_a[1] + k * loop->step_a[2];
                const model_int16 *y = (const model_int16 *)(const void *)b + i * loop->step_b[0] + j * loop->step_b[1] + k * loop->step_b[2];
                for (int32_t l = 0; l < loop->count[3]; l++, x += loop->step_a[3], y += loop->step_b[3]) {
                    *out++ = clamp_16(rescale(*x * *y, s.multiplier, s.shift), s.low, s.high);
                }
            }
        }
    }
}
