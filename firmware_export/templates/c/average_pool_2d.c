static void average_pool_2d(const struct pool *shape, const struct model_range *range, const int8_t *in, int8_t *out)
{
    const int32_t channels = shape->channels, line = shape->in_width * channels;
    for (int32_t y = 0; y < shape->out_height; y++) {
        for (int32_t x = 0; x < shape->out_width; x++, out += channels) {
            const struct window w = window_at(shape, y, x);
            const int32_t rows = w.bottom - w.top, columns = w.right - w.left, count = rows * columns;
            const int8_t *const from = in + w.top * line + w.left * channels;
            int32_t together = 4;
            for (int32_t c = 0; c < channels; c += together) {
                int32_t sums[4];
                together = channels - c < 4 ? 1 : 4;
                channel_sums(from + c, together, rows, line, columns, channels, sums);
                for (int32_t i = 0; i < together; i++) {
                    const int32_t sum = sums[i] > 0 ? sums[i] + count / 2 : sums[i] - count / 2;
                    out[c + i] = clamp(sum / count, range->low, range->high);
                }
            }
        }
    }
}
