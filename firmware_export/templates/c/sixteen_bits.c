/* Values of 16 bits in memory that other kernels use as bytes. */
#if defined(__GNUC__)
typedef int16_t __attribute__((may_alias)) model_int16;
#else
typedef int16_t model_int16;
#endif

MODEL_INLINE int32_t saturate_16(int32_t value)
{
    return value < -32768 ? -32768 : value > 32767 ? 32767 : value;
}

MODEL_INLINE int16_t clamp_16(int32_t value, int32_t low, int32_t high)
{
    return (int16_t)(value < low ? low : value > high ? high : value);
}
