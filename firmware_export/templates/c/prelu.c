/* a, or a * b if a is negative. */
static void prelu(const struct elementwise *loop, const struct model_add *scale, const int8_t *a, const int8_t *b, int8_t *out)
{
    const struct model_add s = *scale;
    for (int32_t i = 0; i < loop->count[0]; i++) {
        for (int32_t j = 0; j < loop->count[1]; j++) {
            for (int32_t k = 0; k < loop->count[2]; k++) {
                const int8_t *x = a + i * loop->step_a[0] + j * loop->step_a[1] + k * loop->step_a[2];
                const int8_t *y = b + i * loop->step_b[0] + j * loop->step_b[1] + k * loop->step_b[2];
                for (int32_t l = 0; l < loop->count[3]; l++, x += loop->step_a[3], y += loop->step_b[3], out++) {
                    const int32_t value = *x - s.zero_a;
                    const int32_t result = value >= 0 ? rescale(value, s.multiplier_a, s.shift_a)
                                                      : rescale(value * (*y - s.zero_b), s.multiplier_b, s.shift_b);
                    *out = clamp(result + s.zero, s.low, s.high);
                }
            }
        }
    }
}
