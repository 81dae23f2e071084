/* steps x inputs -> steps x units. The four gates of a unit are neighbouring rows: input, forget, cell and output gate. Each gate has the
 * factor of its inputs, then those of the last outputs. The outputs are the next `hidden` only after all units of a step have read it. */
static void lstm(int32_t steps, int32_t inputs, int32_t units, const struct model_lstm *scale, const int32_t *bias, const int32_t *recurrent_bias,
                 const int32_t *multiplier, const int8_t *shift, const int8_t *weights, const int8_t *recurrent, const int8_t *in, int8_t *hidden,
                 int8_t *cells, int8_t *out)
{
    model_int16 *const cell = (model_int16 *)(void *)cells;
    for (; steps > 0; steps--, in += inputs, out += units) {
        for (int32_t unit = 0; unit < units; unit++) {
            int32_t gate[4], from_hidden[4], value;
            four_products(inputs, in, weights + 4 * unit * inputs, gate);
            four_products(units, hidden, recurrent + 4 * unit * units, from_hidden);
            for (int32_t i = 0; i < 4; i++) {
                const int32_t row = 4 * unit + i;
                value = saturate_16(rescale(gate[i] + bias[row], multiplier[i], shift[i]));
                value += saturate_16(rescale(from_hidden[i] + recurrent_bias[row], multiplier[4 + i], shift[4 + i]));
                value = 3 * saturate_16(value);
                gate[i] = i == 2 ? tanh_16(value) : sigmoid_16(value);
            }
            value = saturate_16(rescale(gate[1] * cell[unit], scale->forget_multiplier, scale->forget_shift));
            value += saturate_16(rescale(gate[0] * gate[2], scale->input_multiplier, scale->input_shift));
            value = value < -scale->most ? -scale->most : value;
            value = value > scale->most ? scale->most : value;
            value = saturate_16(value);
            cell[unit] = (int16_t)value;
            value = (value * scale->tanh_multiplier + (1 << scale->tanh_shift >> 1)) >> scale->tanh_shift;
            value = rescale(tanh_16(value) * gate[3], scale->output_multiplier, scale->output_shift);
            out[unit] = saturate(value + scale->output_zero);
        }
        for (int32_t unit = 0; unit < units; unit++) {
            hidden[unit] = out[unit];
        }
    }
}
