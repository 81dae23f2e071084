/* Four nested loops from one layout of bytes to another. */
struct copy {
    int32_t count[4], step_in[4], step_out[4];
};

static void copy(const struct copy *loop, const int8_t *in, int8_t *out)
{
    for (int32_t i = 0; i < loop->count[0]; i++) {
        for (int32_t j = 0; j < loop->count[1]; j++) {
            for (int32_t k = 0; k < loop->count[2]; k++) {
                const int8_t *from = in + i * loop->step_in[0] + j * loop->step_in[1] + k * loop->step_in[2];
                int8_t *to = out + i * loop->step_out[0] + j * loop->step_out[1] + k * loop->step_out[2];
                if (loop->step_in[3] == 1 && loop->step_out[3] == 1) {
                    copy_run(to, from, loop->count[3]);
                    continue;
                }
                for (int32_t l = 0; l < loop->count[3]; l++, from += loop->step_in[3], to += loop->step_out[3]) {
                    *to = *from;
                }
            }
        }
    }
}
