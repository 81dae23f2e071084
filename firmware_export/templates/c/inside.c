/* The rows or columns of a kernel that lie inside the input. */
struct inside {
    int32_t first, last;
};

static struct inside find_inside(int32_t start, int32_t dilation, int32_t kernel, int32_t size)
{
    struct inside part = {0, kernel};
    while (part.first < part.last && start + part.first * dilation < 0) {
        part.first++;
    }
    while (part.last > part.first && start + (part.last - 1) * dilation >= size) {
        part.last--;
    }
    return part;
}
