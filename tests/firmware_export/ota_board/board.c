/* NOR flash in memory with power cuts. After `power` more operations it accepts nothing, and completes `torn` quarters of the last one.
   An erase sets all bits of an area, a write clears bits. `violations` counts writes that real flash refuses. An update comes in pieces of
   `piece` bytes. */
#include "ota.h"
#include "model.h"

enum { SLOT = 4096, COUNTERS = 128 };
static uint64_t memory[(2 * SLOT + 2 * COUNTERS) / 8];
static uint8_t *const bytes = (uint8_t *)memory;
int power = -1;
int torn = 2;
int operations;
int violations;
int lost = -1; /* number of the write that has no effect, but reports success */
uint32_t piece = UINT32_MAX;

static struct ota_flash flash;

static uint8_t *start(int area) { return bytes + (area < 2 ? area * SLOT : 2 * SLOT + (area - 2) * COUNTERS); }
static uint32_t size(int area) { return area < 2 ? flash.slot_bytes : flash.counter_bytes; }

static int powered(void)
{
    operations++;
    if (power > 0)
        power--;
    return power != 0;
}

static int off(void) { return power == 0; }

static int erase(enum ota_area area)
{
    if (off())
        return 1;
    int on = powered();
    uint32_t count = area < 2 ? SLOT : COUNTERS;
    for (uint32_t i = 0; i < (on ? count : count / 4 * (uint32_t)torn); i++)
        start(area)[i] = 0xff;
    return !on;
}

static int write(enum ota_area area, uint32_t offset, const uint8_t *from, uint32_t count)
{
    if (off())
        return 1;
    int on = powered();
    if (operations == lost)
        return 0;
    if (offset % 8 || count % 8 || offset > size(area) || count > size(area) - offset)
        violations++;
    for (uint32_t i = 0; i < (on ? count : count / 4 * (uint32_t)torn); i++) {
        uint8_t *to = start(area) + offset + i;
        if (*to != 0xff)
            violations++; /* written twice without an erase */
        *to &= from[i];
    }
    return !on;
}

void set_slot_bytes(uint32_t count) { flash.slot_bytes = count; }
void set_counter_bytes(uint32_t count) { flash.counter_bytes = count; }
uint8_t *area(int which) { return start(which); }
uint8_t *everything(void) { return bytes; }
uint32_t everything_bytes(void) { return sizeof memory; }
uint32_t highest(void) { return ota_counter(); }

uint32_t boot(void)
{
    power = -1;
    if (!flash.erase) {
        for (uint32_t i = 0; i < sizeof memory; i++)
            bytes[i] = 0xff;
        flash = (struct ota_flash){{start(0), start(1), start(2), start(3)}, SLOT, COUNTERS, erase, write};
    }
    return ota_boot(&flash);
}

void begin(const uint8_t *key, const uint8_t *device) { ota_begin(&flash, key, device); }

int send_pieces(const uint8_t *update, uint32_t count)
{
    int result = ota_write(update, 0);
    while (count) {
        uint32_t now = count < piece ? count : piece;
        result = ota_write(update, now);
        update += now;
        count -= now;
    }
    return result;
}

int apply(const uint8_t *update, uint32_t count, const uint8_t *key, const uint8_t *device)
{
    begin(key, device);
    int sent = send_pieces(update, count), result = ota_finish();
    return sent == OTA_DONE || sent == result ? result : -1;
}
