#include "ota.h"

#include "model.h"
#include "monocypher.h"
#include "sha2.h"

/* An update: mark, version, counter, parts, layout, device, seed, runs, answers; then for each part its size, whether it is carried, digest.
   A slot's record: mark, version, counter, zeros, layout, digest. A counter record: mark, version, counter, complement of the counter. */
enum { LAYOUT = 16, DEVICE = LAYOUT + 32, SEED = DEVICE + 32, RUNS = SEED + 4, ANSWERS = RUNS + 4, HEAD = ANSWERS + 32 };
enum { ENTRY = 8 + 32, SIGNATURE = 64, RECORD = 16 + 32 + 32, VERSION = 2, MAX_PARTS = 64, MAX_RUNS = 64 };

static const uint8_t UPDATE_MARK[4] = {'E', 'F', 'L', 'U'};
static const uint8_t RECORD_MARK[4] = {'E', 'F', 'L', 'S'};
static const uint8_t COUNTER_MARK[4] = {'E', 'F', 'L', 'C'};

static const void *built_in[MODEL_PARTS];
static uint32_t counter_in_use;
static uint32_t highest_counter;
static int slot_in_use = -1;
static int counter_page;         /* the page of the next record: 0 or 1 */
static uint32_t counter_offset;  /* offset of the next record in it */

static int same(const uint8_t *a, const uint8_t *b, uint32_t count)
{
    uint8_t differ = 0;
    while (count--)
        differ |= (uint8_t)(*a++ ^ *b++);
    return differ == 0;
}

static uint32_t read32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void write32(uint8_t *bytes, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t padded(uint32_t bytes) { return (bytes + 7) & ~UINT32_C(7); }

static uint32_t slot_needs(void)
{
    uint32_t total = 0;
    for (unsigned i = 0; i < MODEL_PARTS; i++)
        total += padded(model_part_bytes[i]);
    return total;
}

static unsigned hex_digit(char letter)
{
    return (unsigned)letter <= '9' ? (unsigned)letter - '0' : (unsigned)letter - 'a' + 10;
}

static void read_layout(uint8_t layout[32])
{
    const char *hex = MODEL_LAYOUT;
    for (unsigned i = 0; i < 32; i++)
        layout[i] = (uint8_t)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
}

/* A slot's digest covers its record up to the digest, and all parts. */
static void slot_digest(const uint8_t *slot, uint32_t parts, const uint8_t *record, uint8_t digest[32])
{
    struct sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, record, RECORD - 32);
    sha256_add(&hash, slot, parts);
    sha256_end(&hash, digest);
}

/* The counter of an intact slot with this format version and layout. 0 for any other slot. */
static uint32_t counter_of(const uint8_t *slot)
{
    uint8_t digest[32], layout[32];
    uint32_t parts = slot_needs();
    const uint8_t *record = slot + parts;
    read_layout(layout);
    if (!same(record, RECORD_MARK, 4) || read32(record + 4) != VERSION || !same(record + 16, layout, 32))
        return 0;
    slot_digest(slot, parts, record, digest);
    return same(record + 48, digest, 32) ? read32(record + 8) : 0;
}

/* The counter of an intact record. 0 for any other record. */
static uint32_t counter_at(const uint8_t *record)
{
    uint32_t counter = read32(record + 8);
    return same(record, COUNTER_MARK, 4) && read32(record + 4) == VERSION && counter == ~read32(record + 12) ? counter : 0;
}

static int erased(const uint8_t *bytes, uint32_t count)
{
    while (count--)
        if (*bytes++ != 0xff)
            return 0;
    return 1;
}

/* Find the highest counter of the two pages. The next record goes behind all data that were written to the page of that counter. */
static void read_counters(const struct ota_flash *flash)
{
    highest_counter = 0;
    counter_page = 0;
    for (int page = 0; page < 2; page++)
        for (uint32_t at = 0; at + OTA_COUNTER_RECORD <= flash->counter_bytes; at += OTA_COUNTER_RECORD) {
            uint32_t counter = counter_at(flash->area[OTA_COUNTER_0 + page] + at);
            if (counter > highest_counter) {
                highest_counter = counter;
                counter_page = page;
            }
        }
    counter_offset = flash->counter_bytes / OTA_COUNTER_RECORD * OTA_COUNTER_RECORD;
    while (counter_offset
           && erased(flash->area[OTA_COUNTER_0 + counter_page] + counter_offset - OTA_COUNTER_RECORD, OTA_COUNTER_RECORD))
        counter_offset -= OTA_COUNTER_RECORD;
}

/* Write the highest counter to its page. If the page is full, use the other page, which holds only lower counters. */
static enum ota_result keep_counter(const struct ota_flash *flash, uint32_t counter)
{
    uint8_t record[OTA_COUNTER_RECORD];
    int page = counter_page;
    uint32_t offset = counter_offset;
    if (offset + OTA_COUNTER_RECORD > flash->counter_bytes) {
        page = 1 - page;
        offset = 0;
        if (flash->erase((enum ota_area)(OTA_COUNTER_0 + page)))
            return OTA_NOT_WRITTEN;
    }
    for (unsigned i = 0; i < 4; i++)
        record[i] = COUNTER_MARK[i];
    write32(record + 4, VERSION);
    write32(record + 8, counter);
    write32(record + 12, ~counter);
    int failed = flash->write((enum ota_area)(OTA_COUNTER_0 + page), offset, record, OTA_COUNTER_RECORD);
    read_counters(flash);
    return !failed && highest_counter == counter ? OTA_DONE : OTA_NOT_WRITTEN;
}

static void use_slot(const uint8_t *slot)
{
    for (unsigned i = 0; i < MODEL_PARTS; i++) {
        model_part[i] = slot ? (const void *)slot : built_in[i];
        if (slot)
            slot += padded(model_part_bytes[i]);
    }
}

uint32_t ota_boot(const struct ota_flash *flash)
{
    for (unsigned i = 0; i < MODEL_PARTS && !built_in[MODEL_PARTS - 1]; i++)
        built_in[i] = model_part[i];
    counter_in_use = 0;
    slot_in_use = -1;
    read_counters(flash);
    if (flash->slot_bytes >= slot_needs() + RECORD)
        for (int slot = 0; slot < 2; slot++) {
            uint32_t counter = counter_of(flash->area[slot]);
            if (counter > counter_in_use) {
                counter_in_use = counter;
                slot_in_use = slot;
            }
        }
    use_slot(slot_in_use < 0 ? 0 : flash->area[slot_in_use]);
    return counter_in_use;
}

uint32_t ota_counter(void) { return highest_counter > counter_in_use ? highest_counter : counter_in_use; }

/* Self-test inputs are pseudo-random (xorshift32) with eight amplitudes, so that an update contains no samples. */
static void self_test(uint32_t seed, uint32_t runs, uint8_t digest[32])
{
    int8_t *const input = model_input(), *const output = model_output();
    struct sha256 hash;
    sha256_begin(&hash);
    for (uint32_t run = 0; run < runs; run++) {
        for (uint32_t i = 0; i < MODEL_INPUT_BYTES; i++) {
            seed ^= seed << 13;
            seed ^= seed >> 17;
            seed ^= seed << 5;
            input[i] = (int8_t)((int32_t)((seed & 255) >> run % 8) - (128 >> run % 8));
        }
        model_invoke(input, output);
        sha256_add(&hash, (const uint8_t *)output, MODEL_OUTPUT_BYTES);
    }
    sha256_end(&hash, digest);
}

static int signed_by(const uint8_t key[32], const uint8_t *signature, const uint8_t *message, uint32_t count)
{
    const uint8_t *const piece[3] = {signature, key, message};
    const uint32_t counts[3] = {32, 32, count};
    uint8_t hash[64], reduced[32];
    sha512_of(piece, counts, hash);
    crypto_eddsa_reduce(reduced, hash);
    return crypto_eddsa_check_equation(signature, key, reduced) == 0;
}

static int write_part(const struct ota_flash *flash, int slot, uint32_t offset, const uint8_t *bytes, uint32_t count)
{
    uint8_t tail[8] = {0};
    uint32_t whole = count & ~UINT32_C(7);
    for (uint32_t i = whole; i < count; i++)
        tail[i - whole] = bytes[i];
    if (whole && flash->write((enum ota_area)slot, offset, bytes, whole))
        return 1;
    return whole < count ? flash->write((enum ota_area)slot, offset + whole, tail, 8) : 0;
}

/* Fill the slot with the update's parts. Parts that the update does not carry are copied from the ones in use. */
static enum ota_result fill(const struct ota_flash *flash, int slot, const uint8_t *entry, const uint8_t *payload)
{
    uint32_t offset = 0;
    if (flash->erase((enum ota_area)slot))
        return OTA_NOT_WRITTEN;
    for (unsigned i = 0; i < MODEL_PARTS; i++, entry += ENTRY) {
        uint8_t digest[32];
        const uint8_t *bytes = read32(entry + 4) ? payload : (const uint8_t *)model_part[i];
        if (write_part(flash, slot, offset, bytes, model_part_bytes[i]))
            return OTA_NOT_WRITTEN;
        sha256_of(flash->area[slot] + offset, model_part_bytes[i], digest);
        if (!same(digest, entry + 8, 32))
            return OTA_NOT_WRITTEN;
        if (read32(entry + 4))
            payload += model_part_bytes[i];
        offset += padded(model_part_bytes[i]);
    }
    return OTA_DONE;
}

static enum ota_result check_parts(const uint8_t *entry, const uint8_t *payload, uint32_t left)
{
    for (unsigned i = 0; i < MODEL_PARTS; i++, entry += ENTRY) {
        uint8_t digest[32];
        int carried = read32(entry + 4) != 0;
        if (read32(entry) != model_part_bytes[i])
            return OTA_OTHER_LAYOUT;
        if (carried && left < model_part_bytes[i])
            return OTA_BAD_FORMAT;
        sha256_of(carried ? payload : (const uint8_t *)model_part[i], model_part_bytes[i], digest);
        if (!same(digest, entry + 8, 32))
            return carried ? OTA_BAD_DIGEST : OTA_OTHER_BASE;
        if (carried) {
            payload += model_part_bytes[i];
            left -= model_part_bytes[i];
        }
    }
    return left ? OTA_BAD_FORMAT : OTA_DONE;
}

static enum ota_result write_record(const struct ota_flash *flash, int slot, uint32_t counter)
{
    uint8_t record[RECORD] = {0};
    uint32_t parts = slot_needs();
    for (unsigned i = 0; i < 4; i++)
        record[i] = RECORD_MARK[i];
    write32(record + 4, VERSION);
    write32(record + 8, counter);
    read_layout(record + 16);
    slot_digest(flash->area[slot], parts, record, record + 48);
    if (flash->write((enum ota_area)slot, parts, record, RECORD) || counter_of(flash->area[slot]) != counter)
        return OTA_NOT_WRITTEN;
    return OTA_DONE;
}

/* Whether a counter is newer. The highest one is accepted again if it does not run: after a power cut, or the loss of both slots. */
static int is_newer(uint32_t counter)
{
    return counter > ota_counter() || (counter == ota_counter() && counter > counter_in_use);
}

enum ota_result ota_apply(const struct ota_flash *flash, const uint8_t *update, uint32_t count, const uint8_t key[32],
                          const uint8_t device[32])
{
    static const uint8_t all_devices[32];
    uint8_t layout[32], digest[32];
    if (count < HEAD || !same(update, UPDATE_MARK, 4))
        return OTA_BAD_FORMAT;
    if (read32(update + 4) != VERSION)
        return OTA_OTHER_VERSION;
    uint32_t counter = read32(update + 8);
    uint32_t parts = read32(update + 12);
    if (parts < 1 || parts > MAX_PARTS || read32(update + RUNS) > MAX_RUNS)
        return OTA_BAD_FORMAT;
    uint32_t head = HEAD + parts * ENTRY;
    if (count < head + SIGNATURE)
        return OTA_BAD_FORMAT;
    if (!signed_by(key, update + head, update, head))
        return OTA_BAD_SIGNATURE;
    if (!same(update + DEVICE, device, 32) && !same(update + DEVICE, all_devices, 32))
        return OTA_OTHER_DEVICE;
    read_layout(layout);
    if (parts != MODEL_PARTS || !same(update + LAYOUT, layout, 32))
        return OTA_OTHER_LAYOUT;
    if (!is_newer(counter))
        return OTA_OLD_COUNTER;
    if (flash->slot_bytes < slot_needs() + RECORD || flash->counter_bytes < OTA_COUNTER_RECORD)
        return OTA_NO_ROOM;
    enum ota_result result = check_parts(update + HEAD, update + head + SIGNATURE, count - head - SIGNATURE);
    if (result != OTA_DONE)
        return result;
    int slot = slot_in_use == 0 ? 1 : 0;
    result = fill(flash, slot, update + HEAD, update + head + SIGNATURE);
    if (result == OTA_DONE) {
        use_slot(flash->area[slot]);
        self_test(read32(update + SEED), read32(update + RUNS), digest);
        result = same(digest, update + ANSWERS, 32) ? OTA_DONE : OTA_SELF_TEST_FAILED;
    }
    if (result == OTA_DONE && counter > highest_counter) /* before the slot's record, so that no slot is ahead of the pages */
        result = keep_counter(flash, counter);
    if (result == OTA_DONE)
        result = write_record(flash, slot, counter);
    if (result != OTA_DONE) {
        use_slot(slot_in_use < 0 ? 0 : flash->area[slot_in_use]);
        return result;
    }
    slot_in_use = slot;
    counter_in_use = counter;
    return OTA_DONE;
}
