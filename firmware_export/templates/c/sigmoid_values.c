/* The sigmoid or the hyperbolic tangent of values of 16 bits. The factor gives them the scale of the table. */
static void sigmoid_values(int32_t count, int32_t is_tanh, const struct model_softmax *scale, const int8_t *from, int8_t *to)
{
    const model_int16 *const in = (const model_int16 *)(const void *)from;
    model_int16 *const out = (model_int16 *)(void *)to;
    for (int32_t i = 0; i < count; i++) {
        const int32_t value = (in[i] * scale->multiplier + (1 << scale->shift >> 1)) >> scale->shift;
        out[i] = (int16_t)(is_tanh ? tanh_16(value) : sigmoid_16(value));
    }
}
