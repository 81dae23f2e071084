/* C leaves the right shift of a negative number to the compiler. This one must copy the sign, as all known compilers for these cores do. */
typedef char model_right_shifts_copy_the_sign[(-1 >> 1) == -1 ? 1 : -1];

/* Not at -O0: the compiler then reserves registers that the assembly needs. */
#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_BIG_ENDIAN) && defined(__OPTIMIZE__)
#include <arm_acle.h>
#define MODEL_DSP 1
#endif

#if defined(__thumb2__) && defined(__OPTIMIZE__)
#define MODEL_THUMB2 1
#endif

/* Helium, the vector instructions of a Cortex-M55 or M85. With Clang the kernels for DSP instructions run. */
#if defined(MODEL_DSP) && defined(__ARM_FEATURE_MVE) && !defined(__clang__)
#include <arm_mve.h>
#define MODEL_MVE 1
#endif

/* MODEL_APART: a separate function, so that its variables stay in registers. MODEL_UNUSED: some cores do not call it. */
#if defined(__GNUC__)
#define MODEL_APART __attribute__((noinline, unused))
#define MODEL_INLINE static inline __attribute__((unused))
#define MODEL_UNUSED __attribute__((unused))
#define MODEL_ALIGNED __attribute__((aligned(8)))
#define MODEL_LIKELY(condition) __builtin_expect(condition, 1)
#else
#define MODEL_LIKELY(condition) (condition)
#define MODEL_APART
#define MODEL_INLINE static inline
#define MODEL_UNUSED
#define MODEL_ALIGNED
#endif

/* value * multiplier * 2^(-31 - right), rounded twice like the interpreter: high half to nearest, then a half away from zero. right > 0 */
MODEL_INLINE int32_t rescale_down(int32_t value, int32_t multiplier, int32_t right)
{
    int32_t high;
#ifdef MODEL_THUMB2
    int32_t low; /* After each shift the carry is the last bit that left, which rounds. */
    __asm__("smull %0, %1, %2, %3\n\t"
            "lsrs %0, %0, #31\n\t"
            "adc %1, %0, %1, lsl #1\n\t"
            "add %1, %1, %1, asr #31\n\t"
            "asrs %1, %1, %4\n\t"
            "adc %1, %1, #0"
            : "=&r"(low), "=&r"(high)
            : "r"(value), "r"(multiplier), "r"(right)
            : "cc");
    return high;
#else
    high = (int32_t)(((int64_t)value * multiplier + (1 << 30)) >> 31);
    high += high >> 31;
    return ((high >> (right - 1)) + 1) >> 1;
#endif
}

/* value * multiplier * 2^(left - 31) */
MODEL_INLINE int32_t rescale_up(int32_t value, int32_t multiplier, int32_t left)
{
    value = (int32_t)((uint32_t)value << left);
    return (int32_t)(((int64_t)value * multiplier + (1 << 30)) >> 31);
}

MODEL_INLINE int32_t rescale(int32_t value, int32_t multiplier, int32_t shift)
{
    if (MODEL_LIKELY(shift < 0)) {
        return rescale_down(value, multiplier, -shift);
    }
    return rescale_up(value, multiplier, shift);
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

MODEL_INLINE int8_t saturate(int32_t value)
{
#ifdef MODEL_THUMB2
    __asm__("ssat %0, #8, %0" : "+r"(value));
    return (int8_t)value;
#else
    return clamp(value, -128, 127);
#endif
}

#ifdef MODEL_MVE
/* Four values like rescale(), each with its own multiplier and shift. */
MODEL_INLINE int32x4_t rescale_four(int32x4_t values, int32x4_t multiplier, int32x4_t shift)
{
    const int32x4_t none = vdupq_n_s32(0), down = vminq_s32(shift, none);
    values = vqrdmulhq_s32(vshlq_s32(values, vmaxq_s32(shift, none)), multiplier);
    values = vaddq_s32(values, vshrq_n_s32(vandq_s32(values, down), 31));
    return vrshlq_s32(values, down);
}

/* Four values like rescale_down(), with one multiplier. shift < 0 */
MODEL_INLINE int32x4_t rescale_four_down(int32x4_t values, int32_t multiplier, int32_t shift)
{
    values = vqrdmulhq_n_s32(values, multiplier);
    return vrshlq_n_s32(vaddq_s32(values, vshrq_n_s32(values, 31)), shift);
}

MODEL_INLINE int32x4_t saturate_four(int32x4_t values)
{
    return vmaxq_s32(vminq_s32(values, vdupq_n_s32(127)), vdupq_n_s32(-128));
}
#endif
