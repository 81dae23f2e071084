/* a + b, or a - b if sign_b is negative. Both are rescaled to one scale with 20 extra bits. */
static void add(const struct elementwise *loop, const struct model_add *scale, const int8_t *a, const int8_t *b, int8_t *out)
{
    const struct model_add s = *scale;
    const int32_t count = loop->count[3], step_a = loop->step_a[3], step_b = loop->step_b[3];
    for (int32_t i = 0; i < loop->count[0]; i++) {
        for (int32_t j = 0; j < loop->count[1]; j++) {
            for (int32_t k = 0; k < loop->count[2]; k++) {
                const int8_t *x = a + i * loop->step_a[0] + j * loop->step_a[1] + k * loop->step_a[2];
                const int8_t *y = b + i * loop->step_b[0] + j * loop->step_b[1] + k * loop->step_b[2];
                for (const int8_t *const end = out + count; out != end; x += step_a, y += step_b, out++) {
                    const int32_t first = rescale((*x - s.zero_a) * (1 << 20), s.multiplier_a, s.shift_a);
                    const int32_t second = rescale((*y - s.zero_b) * (1 << 20), s.multiplier_b, s.shift_b);
                    *out = clamp(rescale(first + s.sign_b * second, s.multiplier, s.shift) + s.zero, s.low, s.high);
                }
            }
        }
    }
}
