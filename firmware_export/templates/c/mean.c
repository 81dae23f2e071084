static void mean(const struct mean *shape, const struct model_mul *scale, const int8_t *in, int8_t *out)
{
    const int32_t count = shape->reduced_outer * shape->reduced_inner;
    const int32_t line = shape->reduced_inner * shape->c;
    for (int32_t i = 0; i < shape->a; i++, in += shape->reduced_outer * shape->b * line) {
        for (int32_t j = 0; j < shape->b; j++) {
            int32_t together = 4;
            for (int32_t k = 0; k < shape->c; k += together) {
                int32_t sums[4];
                together = shape->c - k < 4 ? 1 : 4;
                channel_sums(in + j * line + k, together, shape->reduced_outer, shape->b * line, shape->reduced_inner, shape->c, sums);
                for (int32_t l = 0; l < together; l++, out++) {
                    const int32_t sum = sums[l] - scale->zero_a * count;
                    *out = clamp(rescale(sum, scale->multiplier, scale->shift) + scale->zero, scale->low, scale->high);
                }
            }
        }
    }
}
