/* a + b, or a - b if sign_b is negative. Both are rescaled to one scale with 20 extra bits. */
static void add(const struct elementwise *loop, const struct model_add *scale, const int8_t *a, const int8_t *b, int8_t *out)
{
    for (int32_t i = 0; i < loop->count[0]; i++) {
        for (int32_t j = 0; j < loop->count[1]; j++) {
            for (int32_t k = 0; k < loop->count[2]; k++) {
                const int8_t *x = a + i * loop->step_a[0] + j * loop->step_a[1] + k * loop->step_a[2];
                const int8_t *y = b + i * loop->step_b[0] + j * loop->step_b[1] + k * loop->step_b[2];
                for (int32_t l = 0; l < loop->count[3]; l++, x += loop->step_a[3], y += loop->step_b[3], out++) {
                    const int32_t first = rescale((*x - scale->zero_a) * (1 << 20), scale->multiplier_a, scale->shift_a);
                    const int32_t second = rescale((*y - scale->zero_b) * (1 << 20), scale->multiplier_b, scale->shift_b);
                    const int32_t sum = first + scale->sign_b * second;
                    *out = clamp(rescale(sum, scale->multiplier, scale->shift) + scale->zero, scale->low, scale->high);
                }
            }
        }
    }
}
