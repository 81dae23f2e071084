/* Flash in memory, whose power can be cut: after `power` more operations it takes nothing, and tears the last write in the middle. */
#include "ota.h"
#include "model.h"

enum { SLOT = 4096 };
static uint64_t memory[2][SLOT / 8];
static uint8_t *const bytes[2] = {(uint8_t *)memory[0], (uint8_t *)memory[1]};
int power = -1;
int operations;

static int powered(void)
{
    operations++;
    if (power > 0)
        power--;
    return power != 0;
}

static int erase(int slot)
{
    int on = powered();
    for (int i = 0; i < (on ? SLOT : SLOT / 2); i++)
        bytes[slot][i] = 0xff;
    return !on;
}

static int write(int slot, uint32_t offset, const uint8_t *from, uint32_t count)
{
    int on = powered();
    for (uint32_t i = 0; i < (on ? count : count / 2); i++)
        bytes[slot][offset + i] = from[i];
    return !on;
}

static struct ota_flash flash = {{(const uint8_t *)memory[0], (const uint8_t *)memory[1]}, SLOT, erase, write};

void set_slot_bytes(uint32_t count) { flash.slot_bytes = count; }
uint8_t *slot(int which) { return bytes[which]; }
uint32_t boot(void) { power = -1; return ota_boot(&flash); }
int apply(const uint8_t *update, uint32_t count, const uint8_t *key) { return ota_apply(&flash, update, count, key); }
