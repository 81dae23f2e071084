/* The program for the field, with updates of the model's parts (with a key) and drift counters (with a gate). It applies update.bin if it
 * exists, runs samples.bin, and writes outputs.bin and counters.bin. Slots and counter pages are in RAM, and are stored in slots.bin and
 * update_counter.bin between runs. A product uses its flash's functions instead. */
#include "board.h"
#include "model.h"
#ifdef MODEL_EXPERTS
#include "drift.h"
#endif
#ifdef UPDATE_SLOT_BYTES
#include "ota.h"
#include "print.h"
#include "update_key.h"

enum { SLOT = (UPDATE_SLOT_BYTES + 7) / 8, COUNTERS = 16, PIECE = 64 };

static uint64_t slots[2][SLOT];
static uint64_t counters[2][COUNTERS];

static uint64_t *words_of(enum ota_area area)
{
    return area < OTA_COUNTER_0 ? slots[area] : counters[area - OTA_COUNTER_0];
}

static int erase(enum ota_area area)
{
    uint32_t count = area < OTA_COUNTER_0 ? SLOT : COUNTERS;
    for (uint32_t i = 0; i < count; i++) {
        words_of(area)[i] = ~UINT64_C(0);
    }
    return 0;
}

static int write(enum ota_area area, uint32_t offset, const uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ((uint8_t *)words_of(area))[offset + i] = bytes[i];
    }
    return 0;
}

static void load(const char *name, void *bytes, int32_t count)
{
    int file = board_open(name, 0);
    if (file >= 0) {
        board_read(file, bytes, count);
    }
}

static int save(const char *name, const void *bytes, int32_t count)
{
    int file = board_open(name, 1);
    return file < 0 || board_write(file, bytes, count);
}

static int take_update(void)
{
    static const struct ota_flash flash = {
        {(const uint8_t *)slots[0], (const uint8_t *)slots[1], (const uint8_t *)counters[0], (const uint8_t *)counters[1]},
        SLOT * 8, COUNTERS * 8, erase, write};
    static const char *const results[] = {
        "done", "bad format", "bad signature", "old counter", "other layout", "other base", "bad digest", "no room", "not written",
        "self-test failed", "made for another device",
        "other format version; make it again with the edgefl that made this firmware"};
    int file;
    for (enum ota_area area = OTA_SLOT_0; area < OTA_AREAS; area++) {
        erase(area);
    }
    load("slots.bin", slots, sizeof slots);
    load("update_counter.bin", counters, sizeof counters);
    print_number("running update ", ota_boot(&flash));
    print_number(", highest counter ", ota_counter());
    file = board_open("update.bin", 0);
    if (file >= 0) {
        uint8_t piece[PIECE]; /* a product receives the pieces over its line */
        int32_t count;
        ota_begin(&flash, update_key, update_device);
        do {
            count = board_read(file, piece, PIECE);
        } while (count > 0 && ota_write(piece, (uint32_t)count) == OTA_DONE);
        board_print("\nupdate.bin: ");
        board_print(results[ota_finish()]);
        print_number("\nrunning update ", ota_boot(&flash));
        if (save("slots.bin", slots, sizeof slots) || save("update_counter.bin", counters, sizeof counters)) {
            board_print("\ncannot write slots.bin or update_counter.bin\n");
            return 3;
        }
    }
    board_print("\n");
    return 0;
}
#else
static int take_update(void)
{
    return 0;
}
#endif

int main(void)
{
    void *const input = model_input(), *const output = model_output(); /* in the model's arena */
    int samples = board_open("samples.bin", 0);
    int outputs = board_open("outputs.bin", 1);
    int failed = take_update();
    if (samples < 0 || outputs < 0) {
        board_print("cannot open samples.bin or outputs.bin in this directory\n");
        return 2;
    }
#ifdef MODEL_EXPERTS
    static struct drift drift;
    drift_begin(&drift);
#endif
    while (!failed && board_read(samples, input, MODEL_INPUT_BYTES) == MODEL_INPUT_BYTES) {
        model_invoke(input, output);
#ifdef MODEL_EXPERTS
        drift_add(&drift, model_gate);
#endif
        if (board_write(outputs, output, MODEL_OUTPUT_BYTES)) {
            failed = 3;
        }
    }
#ifdef MODEL_EXPERTS
    int counters = board_open("counters.bin", 1);
    if (counters < 0 || board_write(counters, &drift, sizeof drift)) {
        failed = 3;
    }
#endif
    board_print(failed ? "cannot write in this directory\n" : "done\n");
    return failed;
}
