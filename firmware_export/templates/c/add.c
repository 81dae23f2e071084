/* a + b, or a - b if sign_b is negative. Both are rescaled to one scale with extra bits. All shifts go to the right. */
static void add(const struct elementwise *loop, const struct model_add *scale, const int8_t *a, const int8_t *b, int8_t *out)
{
    const struct model_add s = *scale;
    const int32_t right_a = -s.shift_a, right_b = -s.shift_b, right = -s.shift;
    const int32_t count = loop->count[3], step_a = loop->step_a[3], step_b = loop->step_b[3];
    for (int32_t i = 0; i < loop->count[0]; i++) {
        for (int32_t j = 0; j < loop->count[1]; j++) {
            for (int32_t k = 0; k < loop->count[2]; k++) {
                const int8_t *x = a + i * loop->step_a[0] + j * loop->step_a[1] + k * loop->step_a[2];
                const int8_t *y = b + i * loop->step_b[0] + j * loop->step_b[1] + k * loop->step_b[2];
                const int8_t *const end = out + count;
#ifdef MODEL_MVE
                for (; step_a == 1 && step_b == 1 && end - out >= 4; x += 4, y += 4, out += 4) {
                    const int32x4_t first = rescale_four_down(vshlq_r_s32(vsubq_n_s32(vldrbq_s32(x), s.zero_a), s.left_a), s.multiplier_a, s.shift_a);
                    const int32x4_t second = rescale_four_down(vshlq_r_s32(vsubq_n_s32(vldrbq_s32(y), s.zero_b), s.left_b), s.multiplier_b, s.shift_b);
                    const int32x4_t sum = rescale_four_down(vmlaq_n_s32(first, second, s.sign_b), s.multiplier, s.shift);
                    vstrbq_s32(out, vmaxq_s32(vminq_s32(vaddq_n_s32(sum, s.zero), vdupq_n_s32(s.high)), vdupq_n_s32(s.low)));
                }
#endif
                for (; out != end; x += step_a, y += step_b, out++) {
                    const int32_t first = rescale_down((*x - s.zero_a) * (1 << s.left_a), s.multiplier_a, right_a);
                    const int32_t second = rescale_down((*y - s.zero_b) * (1 << s.left_b), s.multiplier_b, right_b);
                    *out = clamp(rescale_down(first + s.sign_b * second, s.multiplier, right) + s.zero, s.low, s.high);
                }
            }
        }
    }
}
