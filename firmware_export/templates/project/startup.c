/* Code before main: stack or vector table, floating point unit, data and bss. No C library is needed. */
#include <stddef.h>

#include "board.h"

extern uint32_t linker_data_begin[], linker_data_end[], linker_data_load[], linker_bss_begin[], linker_bss_end[];
void linker_stack_top(void); /* an address, declared as a function like the vectors */

int main(void);
void SysTick_Handler(void);
void Reset_Handler(void);
void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memset(void *to, int value, size_t count);

__attribute__((noinline, used)) static void run_main(void)
{
    for (uint32_t *to = linker_data_begin, *from = linker_data_load; to < linker_data_end;) {
        *to++ = *from++;
    }
    for (uint32_t *to = linker_bss_begin; to < linker_bss_end;) {
        *to++ = 0;
    }
    board_exit(main());
}

__attribute__((aligned(4), used)) static void fault(void)
{
    board_print("fault: the core stopped (hard fault)\n");
    board_exit(4);
}

#ifdef __riscv
/* csrw mtvec, t0 is written in numbers: assemblers disagree about the option for this instruction. */
__attribute__((naked, section(".vectors"), used)) void Reset_Handler(void)
{
    __asm__ volatile("la sp, linker_stack_top\n"
                     "la t0, fault\n"
                     ".insn i 0x73, 1, x0, t0, 0x305\n"
                     "j run_main");
}
#elif defined(__xtensa__)
/* The code after a reset, with the exception vectors at their offsets from VECBASE. */
__asm__(".section .vectors, \"ax\"\n"
        ".begin no-transform\n"
        ".global Reset_Handler\n"
        "Reset_Handler: j begin\n"
        ".balign 4\n"
        "stack: .word linker_stack_top\n"
        "base: .word Reset_Handler\n"
        ".org 0x30\n call0 fault\n" /* kernel mode */
        ".org 0x50\n call0 fault\n" /* user mode */
        ".org 0x70\n call0 fault\n" /* in an exception, where the core is after a reset */
        "begin: l32r sp, stack\n"
        "l32r a0, base\n"
        "wsr.vecbase a0\n"
        "rsync\n"
        "call0 run_main\n"
        ".end no-transform\n"
        ".previous");
#else
void Reset_Handler(void)
{
#ifdef __ARM_FP
    *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* CPACR: the unit is off after a reset, and its first use would fault */
    __asm__ volatile("dsb\n isb");
#endif
    run_main();
}

__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
    linker_stack_top, Reset_Handler, fault, fault, fault, fault, fault, NULL, NULL, NULL, NULL,
    fault, fault, NULL, fault, SysTick_Handler,
};
#endif

/* The compiler may call these two to copy or set structs and arrays. They use words if both ends are aligned, else bytes. */
typedef uint32_t __attribute__((may_alias)) word;

__attribute__((used)) void *memcpy(void *restrict to, const void *restrict from, size_t count)
{
    char *t = to;
    const char *f = from;
    if ((((uintptr_t)t | (uintptr_t)f) & 3u) == 0) {
        for (; count >= 16; count -= 16, t += 16, f += 16) {
            word *w = (word *)t;
            const word *v = (const word *)f;
            w[0] = v[0];
            w[1] = v[1];
            w[2] = v[2];
            w[3] = v[3];
        }
        for (; count >= 4; count -= 4, t += 4, f += 4) {
            *(word *)t = *(const word *)f;
        }
    }
    while (count--) {
        *t++ = *f++;
    }
    return to;
}

__attribute__((used)) void *memset(void *to, int value, size_t count)
{
    char *t = to;
    const word each = (unsigned char)value * 0x01010101u;
    if (((uintptr_t)t & 3u) == 0) {
        for (; count >= 4; count -= 4, t += 4) {
            *(word *)t = each;
        }
    }
    while (count--) {
        *t++ = (char)value;
    }
    return to;
}

#if defined(__clang__) && defined(__arm__)
/* Clang uses the names of Arm's run-time ABI (RTABI32, section 4.3.4). The suffixes 4 and 8 promise that alignment. */
void __aeabi_memcpy(void *restrict to, const void *restrict from, size_t count);
void __aeabi_memset(void *to, size_t count, int value);
void __aeabi_memclr(void *to, size_t count);

__attribute__((used)) void __aeabi_memcpy(void *restrict to, const void *restrict from, size_t count)
{
    memcpy(to, from, count);
}

__attribute__((used)) void __aeabi_memset(void *to, size_t count, int value)
{
    memset(to, value, count);
}

__attribute__((used)) void __aeabi_memclr(void *to, size_t count)
{
    memset(to, 0, count);
}

void __aeabi_memcpy4(void *restrict to, const void *restrict from, size_t count) __attribute__((alias("__aeabi_memcpy"), used));
void __aeabi_memcpy8(void *restrict to, const void *restrict from, size_t count) __attribute__((alias("__aeabi_memcpy"), used));
void __aeabi_memset4(void *to, size_t count, int value) __attribute__((alias("__aeabi_memset"), used));
void __aeabi_memset8(void *to, size_t count, int value) __attribute__((alias("__aeabi_memset"), used));
void __aeabi_memclr4(void *to, size_t count) __attribute__((alias("__aeabi_memclr"), used));
void __aeabi_memclr8(void *to, size_t count) __attribute__((alias("__aeabi_memclr"), used));
#endif

#ifdef __xtensa__
/* An ESP8266 has these functions of libgcc in its ROM, so the libgcc of its compiler may lack them. */
uint64_t __muldi3(uint64_t a, uint64_t b);
uint32_t __udivsi3(uint32_t a, uint32_t b);
uint32_t __umodsi3(uint32_t a, uint32_t b);
int32_t __divsi3(int32_t a, int32_t b);
uint64_t __udivdi3(uint64_t a, uint64_t b);

typedef union {
    uint64_t all;
    uint32_t half[2]; /* the low one first */
} pair;

/* The products of 16 bits by 16 bits fit 32 bits. */
uint64_t __muldi3(uint64_t a, uint64_t b)
{
    const pair x = {a}, y = {b};
    const uint32_t xl = x.half[0] & 0xFFFFu, xh = x.half[0] >> 16, yl = y.half[0] & 0xFFFFu, yh = y.half[0] >> 16;
    const uint32_t low = xl * yl;
    const uint32_t middle = xh * yl + (low >> 16);
    const uint32_t carry = xl * yh + (middle & 0xFFFFu);
    pair product;
    product.half[0] = (carry << 16) | (low & 0xFFFFu);
    product.half[1] = xh * yh + (middle >> 16) + (carry >> 16) + x.half[0] * y.half[1] + x.half[1] * y.half[0];
    return product.all;
}

/* The quotient, bit by bit, and the remainder. A division by zero has no defined result. */
static uint32_t divide(uint32_t a, uint32_t b, uint32_t *rest)
{
    uint32_t quotient = 0;
    if (a >= b && b) {
        for (int shift = __builtin_clz(b) - __builtin_clz(a); shift >= 0; shift--) {
            quotient <<= 1;
            if (a >= b << shift) {
                a -= b << shift;
                quotient |= 1u;
            }
        }
    }
    *rest = a;
    return quotient;
}

uint32_t __udivsi3(uint32_t a, uint32_t b)
{
    uint32_t rest;
    return divide(a, b, &rest);
}

uint32_t __umodsi3(uint32_t a, uint32_t b)
{
    uint32_t rest;
    (void)divide(a, b, &rest);
    return rest;
}

int32_t __divsi3(int32_t a, int32_t b)
{
    uint32_t rest;
    const uint32_t quotient = divide(a < 0 ? 0u - (uint32_t)a : (uint32_t)a, b < 0 ? 0u - (uint32_t)b : (uint32_t)b, &rest);
    return (int32_t)((a < 0) != (b < 0) ? 0u - quotient : quotient);
}

/* The rest is smaller than b, so twice the rest may have a 65th bit. */
uint64_t __udivdi3(uint64_t a, uint64_t b)
{
    uint64_t quotient = 0, rest = 0;
    for (int bit = 0; bit < 64 && b; bit++) {
        const uint64_t carry = rest >> 63;
        rest = (rest << 1) | (a >> 63);
        a <<= 1;
        quotient <<= 1;
        if (carry || rest >= b) {
            rest -= b;
            quotient |= 1u;
        }
    }
    return quotient;
}
#endif
