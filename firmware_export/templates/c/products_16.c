/* The sum of products of 16-bit inputs with 8-bit weights. 256 of them fit into 32 bits. */
MODEL_INLINE int64_t products_16(int32_t count, const model_int16 *in, const int8_t *weights)
{
    int64_t sum = 0;
    while (count > 0) {
        const int32_t together = count < 256 ? count : 256;
        int32_t part = 0;
        for (int32_t i = 0; i < together; i++) {
            part += in[i] * weights[i];
        }
        sum += part;
        in += together;
        weights += together;
        count -= together;
    }
    return sum;
}
