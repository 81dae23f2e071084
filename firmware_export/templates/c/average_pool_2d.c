static void average_pool_2d(const struct pool *shape, const struct model_range *range, const int8_t *in, int8_t *out)
{
    const int32_t channels = shape->channels;
    for (int32_t y = 0; y < shape->out_height; y++) {
        for (int32_t x = 0; x < shape->out_width; x++, out += channels) {
            const struct window w = window_at(shape, y, x);
            const int32_t count = (w.bottom - w.top) * (w.right - w.left);
            for (int32_t c = 0; c < channels; c++) {
                int32_t sum = 0;
                for (int32_t row = w.top; row < w.bottom; row++) {
                    const int8_t *from = in + (row * shape->in_width + w.left) * channels + c;
                    for (int32_t column = w.left; column < w.right; column++, from += channels) {
                        sum += *from;
                    }
                }
                sum = sum > 0 ? (sum + count / 2) / count : (sum - count / 2) / count;
                out[c] = clamp(sum, range->low, range->high);
            }
        }
    }
}
