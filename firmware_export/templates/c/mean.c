/* in[a][reduced][b][reduced][c] -> out[a][b][c] */
struct mean {
    int32_t a, reduced_outer, b, reduced_inner, c;
};

static void mean(const struct mean *shape, const struct model_mul *scale, const int8_t *in, int8_t *out)
{
    const int32_t count = shape->reduced_outer * shape->reduced_inner;
    const int32_t line = shape->reduced_inner * shape->c;
    for (int32_t i = 0; i < shape->a; i++, in += shape->reduced_outer * shape->b * line) {
        for (int32_t j = 0; j < shape->b; j++) {
            for (int32_t k = 0; k < shape->c; k++, out++) {
                int32_t sum = -scale->zero_a * count;
                for (int32_t outer = 0; outer < shape->reduced_outer; outer++) {
                    const int8_t *from = in + (outer * shape->b + j) * line + k;
                    for (int32_t inner = 0; inner < shape->reduced_inner; inner++, from += shape->c) {
                        sum += *from;
                    }
                }
                *out = clamp(rescale(sum, scale->multiplier, scale->shift) + scale->zero, scale->low, scale->high);
            }
        }
    }
}
