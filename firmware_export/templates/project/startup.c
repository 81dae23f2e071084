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
