/* What the program needs from the board: a clock, two files, text, an end. semihosting.c or host.c implements it; a product has its own. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

int board_open(const char *name, int to_write);            /* a file's number, or -1 */
int32_t board_read(int file, void *bytes, int32_t count);  /* how many bytes were read */
int board_write(int file, const void *bytes, int32_t count); /* 0, or -1 */
void board_print(const char *text);
uint32_t board_ticks(void);                /* goes on and wraps at 2^32 */
void board_mark_stack(void);               /* from here on board_stack_used() counts */
uint32_t board_stack_used(void);           /* bytes below the place of board_mark_stack(); 0 where it is not known */
void board_exit(int code);

#endif
