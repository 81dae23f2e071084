#include "ota.h"

#include "model.h"
#include "monocypher.h"
#include "sha2.h"

enum { HEAD = 16 + 32 + 8 + 32, ENTRY = 8 + 32, SIGNATURE = 64, RECORD = 8 + 32 + 32, VERSION = 1, MAX_PARTS = 64 };

static const uint8_t UPDATE_MARK[4] = {'E', 'F', 'L', 'U'};
static const uint8_t RECORD_MARK[4] = {'E', 'F', 'L', 'S'};

static const void *built_in[MODEL_PARTS];
static uint32_t counter_in_use;
static int slot_in_use = -1;

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

static uint32_t padded(uint32_t bytes) { return (bytes + 7) & ~UINT32_C(7); }

static uint32_t slot_needs(void)
{
    uint32_t total = 0;
    for (unsigned i = 0; i < MODEL_PARTS; i++)
        total += padded(model_part_bytes[i]);
    return total;
}

static void read_layout(uint8_t layout[32])
{
    const char *hex = MODEL_LAYOUT;
    for (unsigned i = 0; i < 64; i++) {
        unsigned digit = (unsigned)hex[i] <= '9' ? (unsigned)hex[i] - '0' : (unsigned)hex[i] - 'a' + 10;
        layout[i / 2] = (uint8_t)(layout[i / 2] << 4 | digit);
    }
}

/* A slot's digest is of its counter, the layout and all parts. */
static void slot_digest(const uint8_t *slot, uint32_t parts, const uint8_t counter[4], uint8_t digest[32])
{
    struct sha256 hash;
    uint8_t layout[32];
    read_layout(layout);
    sha256_begin(&hash);
    sha256_add(&hash, counter, 4);
    sha256_add(&hash, layout, 32);
    sha256_add(&hash, slot, parts);
    sha256_end(&hash, digest);
}

/* The counter of a whole slot of this layout, 0 of any other. */
static uint32_t counter_of(const uint8_t *slot)
{
    uint8_t digest[32], layout[32];
    uint32_t parts = slot_needs();
    const uint8_t *record = slot + parts;
    read_layout(layout);
    if (!same(record, RECORD_MARK, 4) || !same(record + 8, layout, 32))
        return 0;
    slot_digest(slot, parts, record + 4, digest);
    return same(record + 40, digest, 32) ? read32(record + 4) : 0;
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
    if (flash->slot_bytes >= slot_needs() + RECORD)
        for (int slot = 0; slot < 2; slot++) {
            uint32_t counter = counter_of(flash->slot[slot]);
            if (counter > counter_in_use) {
                counter_in_use = counter;
                slot_in_use = slot;
            }
        }
    use_slot(slot_in_use < 0 ? 0 : flash->slot[slot_in_use]);
    return counter_in_use;
}

/* Inputs of a self-test are pseudo-random (xorshift32) in eight amplitudes, so that an update carries no sample of anybody's. */
static void self_test(uint32_t seed, uint32_t runs, uint8_t digest[32])
{
    static int8_t input[MODEL_INPUT_BYTES], output[MODEL_OUTPUT_BYTES];
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
    if (whole && flash->write(slot, offset, bytes, whole))
        return 1;
    return whole < count ? flash->write(slot, offset + whole, tail, 8) : 0;
}

/* Fill the slot with the update's parts, and with those in use where it carries none. */
static enum ota_result fill(const struct ota_flash *flash, int slot, const uint8_t *entry, const uint8_t *payload)
{
    uint32_t offset = 0;
    if (flash->erase(slot))
        return OTA_NOT_WRITTEN;
    for (unsigned i = 0; i < MODEL_PARTS; i++, entry += ENTRY) {
        uint8_t digest[32];
        const uint8_t *bytes = read32(entry + 4) ? payload : (const uint8_t *)model_part[i];
        if (write_part(flash, slot, offset, bytes, model_part_bytes[i]))
            return OTA_NOT_WRITTEN;
        sha256_of(flash->slot[slot] + offset, model_part_bytes[i], digest);
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

static enum ota_result write_record(const struct ota_flash *flash, int slot, const uint8_t counter[4])
{
    uint8_t record[RECORD];
    uint32_t parts = slot_needs();
    for (unsigned i = 0; i < 4; i++) {
        record[i] = RECORD_MARK[i];
        record[4 + i] = counter[i];
    }
    read_layout(record + 8);
    slot_digest(flash->slot[slot], parts, counter, record + 40);
    if (flash->write(slot, parts, record, RECORD) || counter_of(flash->slot[slot]) != read32(counter))
        return OTA_NOT_WRITTEN;
    return OTA_DONE;
}

enum ota_result ota_apply(const struct ota_flash *flash, const uint8_t *update, uint32_t count, const uint8_t key[32])
{
    uint8_t layout[32], digest[32];
    uint32_t parts = count >= HEAD ? read32(update + 12) : 0;
    uint32_t head = HEAD + parts * ENTRY;
    if (count < HEAD || !same(update, UPDATE_MARK, 4) || read32(update + 4) != VERSION || parts < 1 || parts > MAX_PARTS
        || count < head + SIGNATURE)
        return OTA_BAD_FORMAT;
    if (!signed_by(key, update + head, update, head))
        return OTA_BAD_SIGNATURE;
    read_layout(layout);
    if (parts != MODEL_PARTS || !same(update + 16, layout, 32))
        return OTA_OTHER_LAYOUT;
    if (read32(update + 8) <= counter_in_use)
        return OTA_OLD_COUNTER;
    if (flash->slot_bytes < slot_needs() + RECORD)
        return OTA_NO_ROOM;
    enum ota_result result = check_parts(update + HEAD, update + head + SIGNATURE, count - head - SIGNATURE);
    if (result != OTA_DONE)
        return result;
    int slot = slot_in_use == 0 ? 1 : 0;
    result = fill(flash, slot, update + HEAD, update + head + SIGNATURE);
    if (result == OTA_DONE) {
        use_slot(flash->slot[slot]);
        self_test(read32(update + 48), read32(update + 52), digest);
        result = same(digest, update + 56, 32) ? write_record(flash, slot, update + 8) : OTA_SELF_TEST_FAILED;
    }
    if (result != OTA_DONE) {
        use_slot(slot_in_use < 0 ? 0 : flash->slot[slot_in_use]);
        return result;
    }
    slot_in_use = slot;
    counter_in_use = read32(update + 8);
    return OTA_DONE;
}
