#ifndef PRINT_H
#define PRINT_H

#include "board.h"

/* Print a text, then a number in decimal digits, without printf. */
static void print_number(const char *before, uint32_t number)
{
    char text[12];
    int place = 11;
    text[place] = 0;
    do {
        text[--place] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    board_print(before);
    board_print(text + place);
}

#endif
