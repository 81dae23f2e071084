/* The same as mean() for values of 16 bits. */
static void mean_16(const struct mean *shape, const struct model_mul *scale, const int8_t *from, int8_t *to)
{
    const model_int16 *in = (const model_int16 *)(const void *)from;
    model_int16 *out = (model_int16 *)(void *)to;
    const int32_t line = shape->reduced_inner * shape->c;
    for (int32_t i = 0; i < shape->a; i++, in += shape->reduced_outer * shape->b * line) {
        for (int32_t j = 0; j < shape->b; j++) {
            for (int32_t k = 0; k < shape->c; k++) {
                int32_t sum = 0;
                for (int32_t outer = 0; outer < shape->reduced_outer; outer++) {
                    const model_int16 *x = in + (outer * shape->b + j) * line + k;
                    for (int32_t inner = 0; inner < shape->reduced_inner; inner++, x += shape->c) {
                        sum += *x;
                    }
                }
                *out++ = clamp_16(rescale(sum, scale->multiplier, scale->shift), scale->low, scale->high);
            }
        }
    }
}
