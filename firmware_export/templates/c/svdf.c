/* The products of `memory` values of the state with the weights over time, both of 8 or of 16 bits. Sums of 16 bits may wrap around. */
static uint32_t products_over_time(int32_t memory, int32_t wide, const int8_t *state, const int8_t *time)
{
    uint32_t sum = 0;
    if (!wide) {
        return (uint32_t)one_product(memory, state, time);
    }
    for (int32_t i = 0; i < memory; i++) {
        sum += (uint32_t)(((const model_int16 *)(const void *)state)[i] * ((const model_int16 *)(const void *)time)[i]);
    }
    return sum;
}

/* One row of inputs -> filters / rank outputs. The state has the last `memory` features of each filter, and moves by one. */
static void svdf(int32_t inputs, int32_t filters, int32_t memory, int32_t rank, int32_t wide, const struct model_svdf *scale, const int32_t *start,
                 const int32_t *bias, const int8_t *feature, const int8_t *time, const int8_t *in, int8_t *state, int8_t *out)
{
    const int32_t width = wide ? 2 : 1, row = memory * width;
    for (int32_t i = 0; i < filters * row - width; i++) {
        state[i] = state[i + width];
    }
    for (int32_t filter = 0; filter < filters; filter++) {
        int8_t *const last = state + (filter + 1) * row - width;
        const int32_t value = rescale(one_product(inputs, in, feature + filter * inputs) + start[filter], scale->feature_multiplier, scale->feature_shift);
        if (wide) {
            *(model_int16 *)(void *)last = (int16_t)saturate_16(value);
        } else {
            *last = (int8_t)(saturate(value) + scale->state_zero);
        }
    }
    for (int32_t unit = 0; unit < filters / rank; unit++) {
        uint32_t sum = (uint32_t)bias[unit];
        for (int32_t i = 0; i < rank; i++, state += row, time += row) {
            sum += products_over_time(memory, wide, state, time);
        }
        out[unit] = saturate(rescale((int32_t)sum, scale->multiplier, scale->shift) + scale->zero);
    }
}
