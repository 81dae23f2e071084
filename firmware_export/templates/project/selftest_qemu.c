/* The self-test on QEMU's machine, with its serial port, and SysTick, mcycle or CCOUNT as the counter. For a board with Arduino, use
 * c/examples/selftest. Another board needs a file like this one, with its own serial port and counter. */
#include "board.h"
#include "machine.h"
#include "selftest.h"

const char selftest_board[] = "QEMU " MACHINE;
const char selftest_counter[] = "ticks of QEMU";

#define UART(offset) (*(volatile uint32_t *)(UART_ADDRESS + (offset)))

#if defined(UART_CMSDK) /* Arm's Cortex-M System Design Kit: DATA, STATE, CTRL, BAUDDIV */
static void begin_uart(void)
{
    UART(16) = 16;
    UART(8) = 3;
}
static int has_byte(void)
{
    return UART(4) & 2;
}
static uint8_t take_byte(void)
{
    return (uint8_t)UART(0);
}
static void put_byte(uint8_t byte)
{
    while (UART(4) & 1) {
    }
    UART(0) = byte;
}
#elif defined(UART_NRF51) /* Nordic nRF51: TASKS_STARTRX, TASKS_STARTTX, EVENTS_RXDRDY, EVENTS_TXDRDY, ENABLE, RXD, TXD */
static void begin_uart(void)
{
    UART(0x500) = 4;
    UART(0x000) = 1;
    UART(0x008) = 1;
}
static int has_byte(void)
{
    return UART(0x108) != 0;
}
static uint8_t take_byte(void)
{
    UART(0x108) = 0;
    return (uint8_t)UART(0x518);
}
static void put_byte(uint8_t byte)
{
    UART(0x11C) = 0;
    UART(0x51C) = byte;
    while (UART(0x11C) == 0) {
    }
}
#elif defined(UART_CONSOLE) /* the console of Xtensa's simulator: files 0 and 1 */
static void begin_uart(void)
{
}
static int has_byte(void)
{
    return 1;
}
static uint8_t take_byte(void)
{
    uint8_t byte = 0;
    while (board_read(0, &byte, 1) != 1) {
    }
    return byte;
}
static void put_byte(uint8_t byte)
{
    (void)board_write(1, &byte, 1);
}
#else /* 16550, with registers of one byte */
#define UART_BYTE(offset) (*(volatile uint8_t *)(UART_ADDRESS + (offset)))
static void begin_uart(void)
{
}
static int has_byte(void)
{
    return UART_BYTE(5) & 1;
}
static uint8_t take_byte(void)
{
    return UART_BYTE(0);
}
static void put_byte(uint8_t byte)
{
    while (!(UART_BYTE(5) & 0x20)) {
    }
    UART_BYTE(0) = byte;
}
#endif

uint8_t selftest_read(void)
{
    while (!has_byte()) {
    }
    return take_byte();
}

void selftest_write(const uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        put_byte(bytes[i]);
    }
}

uint32_t selftest_ticks(void)
{
    return board_ticks();
}

uint32_t selftest_ticks_per_second(void)
{
    return TICKS_PER_SECOND;
}

int main(void)
{
    begin_uart();
    for (;;) {
        selftest_serve();
    }
}
