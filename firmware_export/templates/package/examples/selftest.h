/* The self-test answers the requests of `edgefl export verify FOLDER --serial PORT`. */
#ifndef SELFTEST_H
#define SELFTEST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void selftest_serve(void); /* Answers one request. Call it again and again. */

/* The board provides these. */
extern const char selftest_board[];             /* name of the board */
extern const char selftest_counter[];           /* what a tick is: "cycles" of the core, "microseconds", or another text */
uint8_t selftest_read(void);                    /* waits for the next byte from the serial port */
void selftest_write(const uint8_t *bytes, uint32_t count);
uint32_t selftest_ticks(void);                  /* counts up and wraps at 2^32 */
uint32_t selftest_ticks_per_second(void);

#ifdef __cplusplus
}
#endif
#endif
