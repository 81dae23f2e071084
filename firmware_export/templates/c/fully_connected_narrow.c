/* Number of weights of a row that are unpacked at a time. */
#define MODEL_WIDE 256

/* Eight weights are packed in `bits` bytes as indices into `values`, the first in the lowest bits. Up to seven extra are written. */
MODEL_APART static void unpack(int32_t bits, const int8_t *values, int32_t count, const int8_t *packed, int8_t *to)
{
    const uint32_t mask = (1u << bits) - 1;
    for (; count > 0; count -= 8, to += 8, packed += bits) {
        uint32_t word = (uint8_t)packed[0] | (uint32_t)(uint8_t)packed[1] << 8 | (uint32_t)(uint8_t)packed[2] << 16;
        if (bits == 4) {
            word |= (uint32_t)(uint8_t)packed[3] << 24;
        }
        to[0] = values[word & mask];
        to[1] = values[word >> bits & mask];
        to[2] = values[word >> 2 * bits & mask];
        to[3] = values[word >> 3 * bits & mask];
        to[4] = values[word >> 4 * bits & mask];
        to[5] = values[word >> 5 * bits & mask];
        to[6] = values[word >> 6 * bits & mask];
        to[7] = values[word >> 7 * bits & mask];
    }
}

/* Like fully_connected, with weights of three or four bits. wide: scratch memory for four rows of MODEL_WIDE weights, and eight more. */
static void fully_connected_narrow(int32_t bits, const int8_t *values, int8_t *wide, int32_t rows, int32_t inputs, int32_t outputs,
                                   const struct model_range *range, const int32_t *bias, const int32_t *multiplier, const int8_t *shift,
                                   const int8_t *packed, const int8_t *in, int8_t *out)
{
    const int32_t row = (inputs + 7) / 8 * bits;
    const int32_t zero = range->output_zero;
    int8_t *const start = out;
    for (; rows > 0; rows--, in += inputs) {
        for (int32_t c = 0; c < outputs; c += 4) {
            const int32_t together = outputs - c < 4 ? outputs - c : 4;
            int32_t sums[4] = {0, 0, 0, 0};
            for (int32_t first = 0; first < inputs; first += MODEL_WIDE) {
                const int32_t count = inputs - first < MODEL_WIDE ? inputs - first : MODEL_WIDE;
                int32_t part[4];
                for (int32_t i = 0; i < together; i++) {
                    unpack(bits, values, count, packed + (c + i) * row + first / 8 * bits, wide + i * count);
                }
                if (together == 4) {
                    four_products(count, in + first, wide, part);
                } else {
                    for (int32_t i = 0; i < together; i++) {
                        part[i] = one_product(count, in + first, wide + i * count);
                    }
                }
                for (int32_t i = 0; i < together; i++) {
                    sums[i] += part[i];
                }
            }
            for (int32_t i = 0; i < together; i++) {
                *out++ = saturate(rescale(sums[i] + bias[c + i], multiplier[c + i], shift[c + i]) + zero);
            }
        }
    }
    limit((int32_t)(out - start), range, start);
}
