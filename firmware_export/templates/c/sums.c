/* Sums of one to four neighbouring channels over rows and columns of an image. */
static void channel_sums(const int8_t *from, int32_t count, int32_t rows, int32_t row_step, int32_t columns, int32_t column_step, int32_t *sums)
{
#ifdef MODEL_MVE
    const mve_pred16_t some = vctp32q((uint32_t)count);
    int32x4_t four = vdupq_n_s32(0);
    for (; rows > 0; rows--, from += row_step) {
        const int8_t *x = from;
        for (int32_t column = columns; column > 0; column--, x += column_step) {
            four = vaddq_s32(four, vldrbq_z_s32(x, some));
        }
    }
    vstrwq_p_s32(sums, four, some);
#else
    int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (; rows > 0; rows--, from += row_step) {
        const int8_t *x = from;
        for (int32_t column = columns; column > 0; column--, x += column_step) {
            s0 += x[0];
            if (count == 4) {
                s1 += x[1];
                s2 += x[2];
                s3 += x[3];
            }
        }
    }
    sums[0] = s0;
    if (count == 4) {
        sums[1] = s1;
        sums[2] = s2;
        sums[3] = s3;
    }
#endif
}
