/* Applies updates from standard input to one board, and writes each result as a byte. It aborts if ota.h breaks a promise.
   A case: flags (1 byte), seed (4), length (4), the update. Each update lies in memory of exactly its length, for AddressSanitizer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "ota.h"

enum { FACTORY_RESET = 1, DAMAGE_FLASH = 2, CUT_POWER = 4, LOSE_SLOTS = 8, INTERRUPT = 16 };

enum { PAGE = 32 }; /* two counter records, so that pages fill up often */

extern int power, torn, violations;
extern uint32_t piece;
uint32_t boot(void);
uint32_t highest(void);
uint8_t *area(int which);
uint8_t *everything(void);
void set_counter_bytes(uint32_t count);
uint32_t everything_bytes(void);
void begin(const uint8_t *key, const uint8_t *device);
int send_pieces(const uint8_t *update, uint32_t count);
int apply(const uint8_t *update, uint32_t count, const uint8_t *key, const uint8_t *device);

static uint32_t number(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void demand(int holds, const char *promise, unsigned long which)
{
    if (!holds) {
        fprintf(stderr, "update %lu: %s\n", which, promise);
        abort();
    }
}

static void infer(int8_t output[MODEL_OUTPUT_BYTES])
{
    static const int8_t sample[MODEL_INPUT_BYTES] = {1, 2, 3, 4, 5};
    model_invoke(sample, output);
}

int main(int count, char **arguments)
{
    static uint8_t key[32], device[32], head[9];
    FILE *trusted = count > 1 ? fopen(arguments[1], "rb") : NULL;
    if (trusted == NULL || fread(key, 1, 32, trusted) != 32 || fread(device, 1, 32, trusted) != 32)
        return 2;
    int damaged = 0;
    uint32_t kept = 0;
    boot();
    set_counter_bytes(PAGE);
    for (unsigned long which = 0; fread(head, 1, sizeof head, stdin) == sizeof head; which++) {
        uint32_t seed = number(head + 1), length = number(head + 5);
        uint8_t *update = malloc(length);
        int8_t before[MODEL_OUTPUT_BYTES], after[MODEL_OUTPUT_BYTES];
        if (fread(update, 1, length, stdin) != length)
            return 3;
        if (head[0] & FACTORY_RESET) {
            memset(everything(), 0xff, everything_bytes());
            damaged = 0;
            kept = 0;
        }
        if (head[0] & LOSE_SLOTS) {
            area(OTA_SLOT_0)[seed % 8] ^= 1;
            area(OTA_SLOT_1)[seed % 8] ^= 1;
        }
        damaged |= head[0] & DAMAGE_FLASH;
        if (head[0] & DAMAGE_FLASH)
            for (uint32_t i = 0; i < 1 + seed % 4; i++)
                everything()[(seed >> 2 * i) * 2654435761u % everything_bytes()] ^= (uint8_t)(1u << (seed >> i) % 8);
        uint32_t runs = boot(), counter = highest();
        demand(counter >= runs, "the highest counter is below what runs", which);
        demand(damaged || counter >= kept, "the counter was lost", which);
        infer(before);
        if (head[0] & CUT_POWER) {
            power = 1 + (int)(seed % 12);
            torn = (int)(seed / 12 % 5);
        }
        piece = 1 + seed % 300;
        if (head[0] & INTERRUPT) {
            begin(key, device);
            send_pieces(update, seed % (length + 1));
        }
        int result = apply(update, length, key, device);
        infer(after);
        demand(violations == 0, "a write that flash refuses", which);
        demand(result == OTA_DONE || memcmp(before, after, sizeof before) == 0, "a refused update changed the model", which);
        demand(result != OTA_DONE || highest() == number(update + 8), "the counter of the update was not kept", which);
        demand(highest() >= counter, "the counter went back", which);
        runs = boot();
        demand(highest() >= counter && highest() >= runs, "the counter went back at the next start", which);
        infer(before);
        demand(result == OTA_NOT_WRITTEN || memcmp(before, after, sizeof before) == 0, "the next start runs another model", which);
        kept = highest();
        free(update);
        putchar(result);
    }
    return 0;
}
