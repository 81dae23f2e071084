/* Not at -O0: the compiler then reserves registers that the assembly needs. */
#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_BIG_ENDIAN) && defined(__OPTIMIZE__)
#include <arm_acle.h>
#define MODEL_DSP 1
#endif

/* A separate function, so that its variables stay in registers. */
#if defined(__GNUC__)
#define MODEL_APART __attribute__((noinline))
#define MODEL_INLINE static inline __attribute__((unused))
#else
#define MODEL_APART
#define MODEL_INLINE static inline
#endif

/* value * multiplier * 2^(shift - 31), rounded twice like the interpreter: high half to nearest, then a half away from zero. */
MODEL_INLINE int32_t rescale(int32_t value, int32_t multiplier, int32_t shift)
{
    if (shift < 0) {
        int32_t high = (int32_t)(((int64_t)value * multiplier + (1 << 30)) >> 31);
        high += high >> 31;
        return ((high >> (-shift - 1)) + 1) >> 1;
    }
    value = (int32_t)((uint32_t)value << shift);
    return (int32_t)(((int64_t)value * multiplier + (1 << 30)) >> 31);
}

MODEL_INLINE int8_t clamp(int32_t value, int32_t low, int32_t high)
{
    if (value < low) {
        value = low;
    }
    if (value > high) {
        value = high;
    }
    return (int8_t)value;
}
