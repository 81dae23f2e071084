static void max_pool_2d(const struct pool *shape, const struct model_range *range, const int8_t *in, int8_t *out)
{
    const int32_t channels = shape->channels;
    for (int32_t y = 0; y < shape->out_height; y++) {
        for (int32_t x = 0; x < shape->out_width; x++, out += channels) {
            const struct window w = window_at(shape, y, x);
            int32_t c = 0;
#ifdef MODEL_MVE
            for (; c + 16 <= channels; c += 16) {
                int8x16_t largest = vdupq_n_s8(-128);
                for (int32_t row = w.top; row < w.bottom; row++) {
                    const int8_t *from = in + (row * shape->in_width + w.left) * channels + c;
                    for (int32_t column = w.left; column < w.right; column++, from += channels) {
                        largest = vmaxq_s8(largest, vldrbq_s8(from));
                    }
                }
                largest = vminq_s8(largest, vdupq_n_s8((int8_t)range->high));
                vstrbq_s8(out + c, vmaxq_s8(largest, vdupq_n_s8((int8_t)range->low)));
            }
#endif
            for (; c < channels; c++) {
                int32_t largest = -128;
                for (int32_t row = w.top; row < w.bottom; row++) {
                    const int8_t *from = in + (row * shape->in_width + w.left) * channels + c;
                    for (int32_t column = w.left; column < w.right; column++, from += channels) {
                        largest = *from > largest ? *from : largest;
                    }
                }
                out[c] = clamp(largest, range->low, range->high);
            }
        }
    }
}
