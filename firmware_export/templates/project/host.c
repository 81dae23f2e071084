/* Implements board.h for a program on this computer. Ticks are nanoseconds. */
#define _POSIX_C_SOURCE 199309L
#include "board.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static FILE *files[16];
static int opened;

int board_open(const char *name, int to_write)
{
    FILE *file = opened < 16 ? fopen(name, to_write ? "wb" : "rb") : NULL;
    if (file == NULL) {
        return -1;
    }
    files[opened] = file;
    return opened++;
}

int32_t board_read(int file, void *bytes, int32_t count)
{
    return (int32_t)fread(bytes, 1, (size_t)count, files[file]);
}

int board_write(int file, const void *bytes, int32_t count)
{
    return fwrite(bytes, 1, (size_t)count, files[file]) == (size_t)count && fflush(files[file]) == 0 ? 0 : -1;
}

void board_print(const char *text)
{
    fputs(text, stdout);
}

uint32_t board_ticks(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
}

void board_mark_stack(void)
{
}

uint32_t board_stack_used(void)
{
    return 0;
}

void board_exit(int code)
{
    exit(code);
}
