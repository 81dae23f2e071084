/* Positions have 10 fractional bits. */
struct resize {
    int32_t in_height, in_width, channels, out_height, out_width, step_height, step_width, half_pixel;
};

struct neighbours {
    int32_t first, second, weight; /* weight of the second, of 1024 */
};

static struct neighbours neighbours_at(int32_t index, int32_t step, int32_t half_pixel, int32_t size)
{
    const int32_t position = index * step + (half_pixel ? step / 2 - 512 : 0);
    struct neighbours n;
    n.first = position > 0 ? position / 1024 : 0;
    n.second = (position + 1023) / 1024;
    n.second = n.second < size ? n.second : size - 1;
    n.weight = position - 1024 * n.first;
    return n;
}

static void resize_bilinear(const struct resize *shape, const int8_t *in, int8_t *out)
{
    const int32_t channels = shape->channels, line = shape->in_width * channels;
    for (int32_t y = 0; y < shape->out_height; y++) {
        const struct neighbours v = neighbours_at(y, shape->step_height, shape->half_pixel, shape->in_height);
        for (int32_t x = 0; x < shape->out_width; x++, out += channels) {
            const struct neighbours h = neighbours_at(x, shape->step_width, shape->half_pixel, shape->in_width);
            for (int32_t c = 0; c < channels; c++) {
                const int8_t *top = in + v.first * line + c, *bottom = in + v.second * line + c;
                const int32_t upper = top[h.first * channels] * (1024 - h.weight) + top[h.second * channels] * h.weight;
                const int32_t lower = bottom[h.first * channels] * (1024 - h.weight) + bottom[h.second * channels] * h.weight;
                const int32_t sum = upper * (1024 - v.weight) + lower * v.weight;
                out[c] = (int8_t)((sum + (sum > 0 ? 524288 : -524288)) / 1048576);
            }
        }
    }
}
