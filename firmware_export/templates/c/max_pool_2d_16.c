static void max_pool_2d_16(const struct pool *shape, const struct model_range *range, const int8_t *from, int8_t *to)
{
    const model_int16 *const in = (const model_int16 *)(const void *)from;
    model_int16 *out = (model_int16 *)(void *)to;
    for (int32_t y = 0; y < shape->out_height; y++) {
        for (int32_t x = 0; x < shape->out_width; x++) {
            const struct window w = window_at(shape, y, x);
            for (int32_t c = 0; c < shape->channels; c++) {
                int32_t largest = -32768;
                for (int32_t row = w.top; row < w.bottom; row++) {
                    for (int32_t column = w.left; column < w.right; column++) {
                        const int32_t value = in[(row * shape->in_width + column) * shape->channels + c];
                        largest = value > largest ? value : largest;
                    }
                }
                *out++ = clamp_16(largest, range->low, range->high);
            }
        }
    }
}
