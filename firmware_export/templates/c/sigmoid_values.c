/* The sigmoid or the hyperbolic tangent of values of 16 bits. `multiplier` and `shift` give them the scale of the table. */
static void sigmoid_values(int32_t count, int32_t is_tanh, int32_t multiplier, int32_t shift, const int8_t *from, int8_t *to)
{
    const model_int16 *const in = (const model_int16 *)(const void *)from;
    model_int16 *const out = (model_int16 *)(void *)to;
    for (int32_t i = 0; i < count; i++) {
        const int32_t value = (in[i] * multiplier + (1 << shift >> 1)) >> shift;
        out[i] = (int16_t)(is_tanh ? tanh_16(value) : sigmoid_16(value));
    }
}
