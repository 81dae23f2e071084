/* Implements board.h for a debugger or QEMU (semihosting): files and text of the host, and a clock: SysTick, mcycle or CCOUNT.
 * Without a debugger the first call stops the core. A product replaces these functions. */
#include "board.h"

#define STACK_PATTERN 0xA5C35A3Cu
#define OWN 16 /* words of stack for board_mark_stack itself: not painted, counted as used */

extern uint32_t linker_bss_end[];

static uint32_t *stack_place;

#ifdef __riscv
/* A debugger knows the call by these three instructions, of four bytes each in one page. */
static __attribute__((noinline)) int32_t semihost(int32_t operation, const void *block)
{
    register int32_t a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = block;
    __asm__ volatile(".option push\n .option norvc\n .balign 16\n"
                     "slli x0, x0, 0x1f\n ebreak\n srai x0, x0, 7\n"
                     ".option pop" : "+r"(a0) : "r"(a1) : "memory");
    return a0;
}

/* csrr ticks, mcycle is written in numbers: assemblers disagree about the option for this instruction. */
uint32_t board_ticks(void)
{
    uint32_t ticks;
    __asm__ volatile(".insn i 0x73, 2, %0, x0, -1280" : "=r"(ticks));
    return ticks;
}
#elif defined(__xtensa__)
/* The calls of Xtensa's simulator have their numbers and arguments in registers. They return what the calls of POSIX return. */
static int32_t simulate(int32_t number, uint32_t first, uint32_t second, uint32_t third)
{
    register int32_t a2 __asm__("a2") = number;
    register uint32_t a3 __asm__("a3") = first;
    register uint32_t a4 __asm__("a4") = second;
    register uint32_t a5 __asm__("a5") = third;
    __asm__ volatile("simcall" : "+r"(a2), "+r"(a3) : "r"(a4), "r"(a5) : "memory");
    return a2;
}

/* The calls of Arm and RISC-V, from those of the simulator. */
static int32_t semihost(int32_t operation, const void *argument)
{
    const uint32_t *block = argument;
    const char *text = argument;
    uint32_t length = 0;
    switch (operation) {
    case 0x01: /* O_RDONLY, or O_WRONLY | O_CREAT | O_TRUNC of Linux */
        return simulate(5, block[0], block[1] == 5u ? 01101 : 0, 0644);
    case 0x05:
        return (int32_t)block[2] - simulate(4, block[0], block[1], block[2]);
    case 0x06:
        return (int32_t)block[2] - simulate(3, block[0], block[1], block[2]);
    case 0x04:
        while (text[length]) {
            length++;
        }
        return simulate(4, 1, (uint32_t)text, length);
    default:
        return simulate(1, block[1], 0, 0);
    }
}

uint32_t board_ticks(void)
{
    uint32_t ticks;
    __asm__ volatile("rsr.ccount %0" : "=r"(ticks));
    return ticks;
}
#else
#define SYST_CSR (*(volatile uint32_t *)0xE000E010u)
#define SYST_RVR (*(volatile uint32_t *)0xE000E014u)
#define SYST_CVR (*(volatile uint32_t *)0xE000E018u)

static volatile uint32_t wraps;

void SysTick_Handler(void);
void SysTick_Handler(void)
{
    wraps++;
}

static int32_t semihost(int32_t operation, const void *block)
{
    register int32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

uint32_t board_ticks(void)
{
    uint32_t high, low;
    if (!(SYST_CSR & 1u)) {
        SYST_RVR = 0xFFFFFFu;
        SYST_CVR = 0;
        SYST_CSR = 7u; /* the core's clock, with an interrupt at each zero */
        while (SYST_CVR == 0) {
        }
    }
    do {
        high = wraps;
        low = SYST_CVR;
    } while (high != wraps);
    return (high << 24) + ((0u - low) & 0xFFFFFFu);
}
#endif

int board_open(const char *name, int to_write)
{
    uint32_t length = 0;
    while (name[length]) {
        length++;
    }
    uint32_t block[3] = {(uint32_t)name, to_write ? 5u : 1u, length};
    return (int)semihost(0x01, block);
}

int32_t board_read(int file, void *bytes, int32_t count)
{
    uint32_t block[3] = {(uint32_t)file, (uint32_t)bytes, (uint32_t)count};
    return count - semihost(0x06, block);
}

int board_write(int file, const void *bytes, int32_t count)
{
    uint32_t block[3] = {(uint32_t)file, (uint32_t)bytes, (uint32_t)count};
    return semihost(0x05, block) ? -1 : 0;
}

void board_print(const char *text)
{
    semihost(0x04, text);
}

/* The lowest painted address: the end of the data, or 64 KB below the caller's frame. */
static uint32_t *stack_floor(void)
{
    uint32_t *lowest = stack_place - 64 * 1024 / 4;
    return lowest > linker_bss_end ? lowest : linker_bss_end;
}

__attribute__((noinline)) void board_mark_stack(void)
{
    stack_place = __builtin_frame_address(0);
    for (volatile uint32_t *word = stack_floor(); word < stack_place - OWN; word++) {
        *word = STACK_PATTERN;
    }
}

uint32_t board_stack_used(void)
{
    const uint32_t *word = stack_floor();
    while (word < stack_place - OWN && *word == STACK_PATTERN) {
        word++;
    }
    return (uint32_t)(stack_place - word) * 4u;
}

void board_exit(int code)
{
    const uint32_t block[2] = {0x20026u, (uint32_t)code};
    for (;;) {
        semihost(0x20, block);
    }
}
