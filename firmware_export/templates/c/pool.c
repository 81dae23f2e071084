struct pool {
    int32_t in_height, in_width, channels, out_height, out_width;
    int32_t pool_height, pool_width, stride_height, stride_width, pad_top, pad_left;
};

/* The window at output (y, x), clipped to the input. */
struct window {
    int32_t top, bottom, left, right;
};

static struct window window_at(const struct pool *shape, int32_t y, int32_t x)
{
    struct window w;
    w.top = y * shape->stride_height - shape->pad_top;
    w.left = x * shape->stride_width - shape->pad_left;
    w.bottom = w.top + shape->pool_height;
    w.right = w.left + shape->pool_width;
    w.top = w.top < 0 ? 0 : w.top;
    w.left = w.left < 0 ? 0 : w.left;
    w.bottom = w.bottom > shape->in_height ? shape->in_height : w.bottom;
    w.right = w.right > shape->in_width ? shape->in_width : w.right;
    return w;
}
