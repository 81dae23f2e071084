/* The program's interface to the board: clock, two files, text, exit. semihosting.c or host.c implements it, or a product's own code. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

int board_open(const char *name, int to_write);            /* number of the file, or -1 */
int32_t board_read(int file, void *bytes, int32_t count);  /* number of bytes that were read */
int board_write(int file, const void *bytes, int32_t count); /* 0, or -1 on failure */
void board_print(const char *text);
uint32_t board_ticks(void);                /* counts up and wraps at 2^32 */
void board_mark_stack(void);               /* starts the count of board_stack_used() */
uint32_t board_stack_used(void);           /* bytes of stack below board_mark_stack(); 0 if unknown */
void board_exit(int code);

#endif
