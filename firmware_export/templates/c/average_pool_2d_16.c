static void average_pool_2d_16(const struct pool *shape, const struct model_range *range, const int8_t *from, int8_t *to)
{
    const model_int16 *const in = (const model_int16 *)(const void *)from;
    model_int16 *out = (model_int16 *)(void *)to;
    for (int32_t y = 0; y < shape->out_height; y++) {
        for (int32_t x = 0; x < shape->out_width; x++) {
            const struct window w = window_at(shape, y, x);
            const int32_t count = (w.bottom - w.top) * (w.right - w.left);
            for (int32_t c = 0; c < shape->channels; c++) {
                int32_t sum = 0;
                for (int32_t row = w.top; row < w.bottom; row++) {
                    for (int32_t column = w.left; column < w.right; column++) {
                        sum += in[(row * shape->in_width + column) * shape->channels + c];
                    }
                }
                sum += sum > 0 ? count / 2 : -(count / 2);
                *out++ = clamp_16(sum / count, range->low, range->high);
            }
        }
    }
}
