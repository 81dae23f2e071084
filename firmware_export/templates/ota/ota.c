#include "ota.h"

#include "model.h"
#include "monocypher.h"
#include "sha2.h"

/* An update: mark, version, counter, parts, layout, device, seed, runs, answers; then for each part its size, whether it is carried, digest;
   the signature over all of these, which are its manifest; the carried parts.
   A slot's record: mark, version, counter, zeros, layout, digest. A counter record: mark, version, counter, complement of the counter. */
enum { LAYOUT = 16, DEVICE = LAYOUT + 32, SEED = DEVICE + 32, RUNS = SEED + 4, ANSWERS = RUNS + 4, HEAD = ANSWERS + 32 };
enum { ENTRY = 8 + 32, MANIFEST = HEAD + MODEL_PARTS * ENTRY, SIGNATURE = 64, RECORD = 16 + 32 + 32, VERSION = 2, MAX_RUNS = 64 };

static const uint8_t UPDATE_MARK[4] = {'E', 'F', 'L', 'U'};
static const uint8_t RECORD_MARK[4] = {'E', 'F', 'L', 'S'};
static const uint8_t COUNTER_MARK[4] = {'E', 'F', 'L', 'C'};

static const void *built_in[MODEL_PARTS];
static uint32_t counter_in_use;
static uint32_t highest_counter;
static int slot_in_use = -1;
static int counter_page;         /* the page of the next record: 0 or 1 */
static uint32_t counter_offset;  /* offset of the next record in it */

/* The update that arrives. flash is 0 if no update was begun. */
static struct {
    const struct ota_flash *flash;
    const uint8_t *key, *device;
    enum ota_result result; /* of all bytes until now */
    uint32_t received;      /* bytes in manifest */
    uint8_t manifest[MANIFEST + SIGNATURE];
    unsigned part;          /* the part whose bytes come next */
    uint32_t left;          /* its bytes that have not come yet */
    struct sha256 hash;     /* of its bytes that have come */
    uint32_t offset;        /* of the next byte in the slot */
    uint8_t word[8];        /* bytes of the slot from the last multiple of 8 on, which are not written yet */
} update;

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

/* A model that keeps a state begins a new sequence with other parts. */
static void begin_sequence(void)
{
#ifdef MODEL_STATE_BYTES
    model_reset();
#endif
}

static void use_slot(const uint8_t *slot)
{
    for (unsigned i = 0; i < MODEL_PARTS; i++) {
        model_part[i] = slot ? (const void *)slot : built_in[i];
        if (slot)
            slot += padded(model_part_bytes[i]);
    }
    begin_sequence();
}

uint32_t ota_boot(const struct ota_flash *flash)
{
    for (unsigned i = 0; i < MODEL_PARTS && !built_in[MODEL_PARTS - 1]; i++)
        built_in[i] = model_part[i];
    update.flash = 0;
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
    begin_sequence();
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

static const uint8_t *entry_of(unsigned part) { return update.manifest + HEAD + part * ENTRY; }

static int carried(unsigned part) { return read32(entry_of(part) + 4) != 0; }

static enum ota_area other_slot(void) { return slot_in_use == 0 ? OTA_SLOT_1 : OTA_SLOT_0; }

/* Whether the parts in use have the digests of the manifest: all of them, or only those that the update does not carry. */
static int parts_match(int all)
{
    uint8_t digest[32];
    for (unsigned i = 0; i < MODEL_PARTS; i++)
        if (all || !carried(i)) {
            sha256_of((const uint8_t *)model_part[i], model_part_bytes[i], digest);
            if (!same(digest, entry_of(i) + 8, 32))
                return 0;
        }
    return 1;
}

/* Write the next bytes of the slot. Flash takes multiples of 8, so up to 7 bytes wait for the next call. */
static int store(const uint8_t *bytes, uint32_t count)
{
    while (count) {
        uint32_t whole = count & ~UINT32_C(7);
        if (whole && update.offset % 8 == 0) {
            if (update.flash->write(other_slot(), update.offset, bytes, whole))
                return 1;
            update.offset += whole;
            bytes += whole;
            count -= whole;
        } else {
            update.word[update.offset++ % 8] = *bytes++;
            count--;
            if (update.offset % 8 == 0 && update.flash->write(other_slot(), update.offset - 8, update.word, 8))
                return 1;
        }
    }
    return 0;
}

/* Fill the last word of a part. */
static int pad_part(void)
{
    static const uint8_t zeros[8];
    return store(zeros, padded(update.offset) - update.offset);
}

/* Go to the next part that the update carries. Parts before it are copied from the ones in use. */
static enum ota_result begin_part(void)
{
    for (; update.part < MODEL_PARTS && !carried(update.part); update.part++)
        if (store((const uint8_t *)model_part[update.part], model_part_bytes[update.part]) || pad_part())
            return OTA_NOT_WRITTEN;
    if (update.part < MODEL_PARTS)
        update.left = model_part_bytes[update.part];
    sha256_begin(&update.hash);
    return OTA_DONE;
}

static enum ota_result end_part(void)
{
    uint8_t digest[32];
    sha256_end(&update.hash, digest);
    if (!same(digest, entry_of(update.part) + 8, 32))
        return OTA_BAD_DIGEST;
    if (pad_part())
        return OTA_NOT_WRITTEN;
    update.part++;
    return begin_part();
}

static enum ota_result write_record(const struct ota_flash *flash, enum ota_area slot, uint32_t counter)
{
    uint8_t record[RECORD] = {0};
    uint32_t parts = slot_needs();
    for (unsigned i = 0; i < 4; i++)
        record[i] = RECORD_MARK[i];
    write32(record + 4, VERSION);
    write32(record + 8, counter);
    read_layout(record + 16);
    slot_digest(flash->area[slot], parts, record, record + 48);
    if (flash->write(slot, parts, record, RECORD) || counter_of(flash->area[slot]) != counter)
        return OTA_NOT_WRITTEN;
    return OTA_DONE;
}

/* Whether a counter is newer. The highest one is accepted again if it does not run: after a power cut, or the loss of both slots. */
static int is_newer(uint32_t counter)
{
    return counter > ota_counter() || (counter == ota_counter() && counter > counter_in_use);
}

/* Nothing is signed yet. These checks refuse what this firmware cannot read to its end. */
static enum ota_result check_header(void)
{
    if (!same(update.manifest, UPDATE_MARK, 4))
        return OTA_BAD_FORMAT;
    if (read32(update.manifest + 4) != VERSION)
        return OTA_OTHER_VERSION;
    return read32(update.manifest + 12) == MODEL_PARTS ? OTA_DONE : OTA_OTHER_LAYOUT;
}

/* Check everything but the parts that will come. Erase the slot only then. */
static enum ota_result check_manifest(void)
{
    static const uint8_t all_devices[32];
    const struct ota_flash *const flash = update.flash;
    const uint8_t *const manifest = update.manifest;
    uint8_t layout[32];
    if (!signed_by(update.key, manifest + MANIFEST, manifest, MANIFEST))
        return OTA_BAD_SIGNATURE;
    if (read32(manifest + RUNS) > MAX_RUNS)
        return OTA_BAD_FORMAT;
    if (!same(manifest + DEVICE, update.device, 32) && !same(manifest + DEVICE, all_devices, 32))
        return OTA_OTHER_DEVICE;
    read_layout(layout);
    if (!same(manifest + LAYOUT, layout, 32))
        return OTA_OTHER_LAYOUT;
    for (unsigned i = 0; i < MODEL_PARTS; i++)
        if (read32(entry_of(i)) != model_part_bytes[i])
            return OTA_OTHER_LAYOUT;
    if (!is_newer(read32(manifest + 8)))
        return OTA_OLD_COUNTER;
    if (flash->slot_bytes < slot_needs() + RECORD || flash->counter_bytes < OTA_COUNTER_RECORD)
        return OTA_NO_ROOM;
    if (!parts_match(0))
        return OTA_OTHER_BASE;
    return flash->erase(other_slot()) ? OTA_NOT_WRITTEN : begin_part();
}

void ota_begin(const struct ota_flash *flash, const uint8_t key[32], const uint8_t device[32])
{
    update.flash = flash;
    update.key = key;
    update.device = device;
    update.result = OTA_DONE;
    update.received = 0;
    update.part = 0;
    update.offset = 0;
}

enum ota_result ota_write(const uint8_t *bytes, uint32_t count)
{
    if (!update.flash)
        return OTA_BAD_FORMAT;
    while (count && update.result == OTA_DONE) {
        uint32_t taken = 1;
        if (update.received < sizeof update.manifest) {
            update.manifest[update.received++] = *bytes;
            if (update.received == HEAD)
                update.result = check_header();
            else if (update.received == sizeof update.manifest)
                update.result = check_manifest();
        } else if (update.part == MODEL_PARTS) {
            update.result = OTA_BAD_FORMAT;
        } else {
            taken = count < update.left ? count : update.left;
            update.left -= taken;
            sha256_add(&update.hash, bytes, taken);
            if (store(bytes, taken))
                update.result = OTA_NOT_WRITTEN;
            else if (!update.left)
                update.result = end_part();
        }
        bytes += taken;
        count -= taken;
    }
    return update.result;
}

enum ota_result ota_finish(void)
{
    const struct ota_flash *const flash = update.flash;
    const enum ota_area slot = other_slot();
    const uint32_t counter = read32(update.manifest + 8);
    enum ota_result result = update.result;
    uint8_t digest[32];
    update.flash = 0;
    if (!flash || (result == OTA_DONE && update.part < MODEL_PARTS))
        return OTA_BAD_FORMAT;
    if (result != OTA_DONE)
        return result;
    use_slot(flash->area[slot]);
    if (!parts_match(1)) {
        result = OTA_NOT_WRITTEN;
    } else {
        self_test(read32(update.manifest + SEED), read32(update.manifest + RUNS), digest);
        result = same(digest, update.manifest + ANSWERS, 32) ? OTA_DONE : OTA_SELF_TEST_FAILED;
    }
    if (result == OTA_DONE && counter > highest_counter) /* before the slot's record, so that no slot is ahead of the pages */
        result = keep_counter(flash, counter);
    if (result == OTA_DONE)
        result = write_record(flash, slot, counter);
    if (result != OTA_DONE) {
        use_slot(slot_in_use < 0 ? 0 : flash->area[slot_in_use]);
        return result;
    }
    slot_in_use = (int)slot;
    counter_in_use = counter;
    return OTA_DONE;
}
