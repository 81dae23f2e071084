static void mul(const struct elementwise *loop, const struct model_mul *scale, const int8_t *a, const int8_t *b, int8_t *out)
{
    const struct model_mul s = *scale;
    const int32_t count = loop->count[3], step_a = loop->step_a[3], step_b = loop->step_b[3];
    for (int32_t i = 0; i < loop->count[0]; i++) {
        for (int32_t j = 0; j < loop->count[1]; j++) {
            for (int32_t k = 0; k < loop->count[2]; k++) {
                const int8_t *x = a + i * loop->step_a[0] + j * loop->step_a[1] + k * loop->step_a[2];
                const int8_t *y = b + i * loop->step_b[0] + j * loop->step_b[1] + k * loop->step_b[2];
                const int8_t *const end = out + count;
#ifdef MODEL_MVE
                for (; step_a == 1 && step_b == 1 && end - out >= 4; x += 4, y += 4, out += 4) {
                    int32x4_t four = vmulq_s32(vsubq_n_s32(vldrbq_s32(x), s.zero_a), vsubq_n_s32(vldrbq_s32(y), s.zero_b));
                    four = vaddq_n_s32(rescale_four(four, vdupq_n_s32(s.multiplier), vdupq_n_s32(s.shift)), s.zero);
                    vstrbq_s32(out, vmaxq_s32(vminq_s32(four, vdupq_n_s32(s.high)), vdupq_n_s32(s.low)));
                }
#endif
                for (; out != end; x += step_a, y += step_b, out++) {
                    *out = clamp(rescale((*x - s.zero_a) * (*y - s.zero_b), s.multiplier, s.shift) + s.zero, s.low, s.high);
                }
            }
        }
    }
}
