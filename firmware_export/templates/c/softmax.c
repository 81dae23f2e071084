/* 2ab / 2^32, rounded to nearest. */
static int32_t high_product(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a * b + (1 << 30)) >> 31);
}

/* value / 2^exponent, rounded to nearest, a half away from zero. */
static int32_t round_shift(int32_t value, int32_t exponent)
{
    const int32_t mask = (int32_t)((1u << exponent) - 1u);
    return (value >> exponent) + ((value & mask) > (mask >> 1) + (value < 0));
}

/* exp of a number <= 0 with 26 fractional bits. The result has 31. A polynomial on [-1/4, 0), and a factor for each higher bit. */
static int32_t exp_of_negative(int32_t value)
{
    static const int32_t factors[7] = {1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242};
    const int32_t quarter = 1 << 24;
    const int32_t part = (value & (quarter - 1)) - quarter;
    const int32_t x = part * 32 + (1 << 28);
    const int32_t x2 = high_product(x, x);
    const int32_t x3 = high_product(x2, x);
    const int32_t x4 = high_product(x2, x2);
    const int32_t rest = round_shift(high_product(round_shift(x4, 2) + x3, 715827883) + x2, 1);
    int32_t result = 1895147668 + high_product(1895147668, x + rest);
    if (value == 0) {
        return INT32_MAX;
    }
    for (int32_t i = 0; i < 7; i++) {
        if ((part - value) & (quarter << i)) {
            result = high_product(result, factors[i]);
        }
    }
    return result;
}

/* 1 / (1 + x) for x in [0, 1], both with 31 fractional bits, by three Newton steps. */
static int32_t one_over_one_plus(int32_t value)
{
    const int32_t half = (int32_t)(((int64_t)value + INT32_MAX + 1) >> 1);
    int32_t x = 1515870810 + high_product(half, -1010580540);
    for (int32_t i = 0; i < 3; i++) {
        x += high_product(x, (1 << 29) - high_product(half, x)) * 4;
    }
    return x >= (1 << 30) ? INT32_MAX : x * 2;
}

/* The outputs have 8 bits, or 16 with `wide`, and begin at the lowest one. */
static void softmax(int32_t rows, int32_t classes, int32_t wide, const struct model_softmax *scale, const int8_t *in, int8_t *out)
{
    const int32_t bits_out = wide ? 16 : 8, lowest = -(1 << (bits_out - 1));
    for (; rows > 0; rows--, in += classes) {
        int32_t largest = in[0], sum = 0, bits = 0;
        for (int32_t c = 1; c < classes; c++) {
            largest = in[c] > largest ? in[c] : largest;
        }
        for (int32_t c = 0; c < classes; c++) {
            if (in[c] - largest >= scale->least) {
                sum += round_shift(exp_of_negative(rescale(in[c] - largest, scale->multiplier, scale->shift)), 12);
            }
        }
        while (((uint32_t)sum << bits) < 0x80000000u) {
            bits++;
        }
        const int32_t reciprocal = one_over_one_plus((int32_t)(((uint32_t)sum << bits) - 0x80000000u));
        for (int32_t c = 0; c < classes; c++, out += bits_out / 8) {
            int32_t value = lowest;
            if (in[c] - largest >= scale->least) {
                const int32_t power = exp_of_negative(rescale(in[c] - largest, scale->multiplier, scale->shift));
                value += round_shift(high_product(reciprocal, power), 12 - bits + 31 - bits_out);
            }
            value = value > -lowest - 1 ? -lowest - 1 : value;
            if (wide) {
                *(model_int16 *)(void *)out = (int16_t)value;
            } else {
                *out = (int8_t)value;
            }
        }
    }
}
