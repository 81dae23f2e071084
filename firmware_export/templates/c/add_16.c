/* The same as add() for values of 16 bits. */
static void add_16(const struct elementwise *loop, const struct model_add *scale, const int8_t *a, const int8_t *b, int8_t *to)
{
    const struct model_add s = *scale;
    model_int16 *out = (model_int16 *)(void *)to;
    for (int32_t i = 0; i < loop->count[0]; i++) {
        for (int32_t j = 0; j < loop->count[1]; j++) {
            for (int32_t k = 0; k < loop->count[2]; k++) {
                const model_int16 *x = (const model_int16 *)(const void *)a + i * loop->step_a[0] + j * loop->step_a[1] + k * loop->step_a[2];
                const model_int16 *y = (const model_int16 *)(const void *)b + i * loop->step_b[0] + j * loop->step_b[1] + k * loop->step_b[2];
                for (int32_t l = 0; l < loop->count[3]; l++, x += loop->step_a[3], y += loop->step_b[3]) {
                    const int32_t first = rescale_down(*x * (1 << s.left_a), s.multiplier_a, -s.shift_a);
                    const int32_t second = rescale_down(*y * (1 << s.left_b), s.multiplier_b, -s.shift_b);
                    *out++ = clamp_16(rescale_down(first + s.sign_b * second, s.multiplier, -s.shift), s.low, s.high);
                }
            }
        }
    }
}
