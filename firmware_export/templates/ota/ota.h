/* Updates of a model's parts (trunk, gate, experts) without a new firmware: signed, counted, tested before they are used.

   Flash holds two slots. A slot is all parts one after another and, written last, a record with the update's counter and a
   digest of the whole; a slot without a fitting record does not exist, so a cut of power at any point leaves the model that ran.
   The stack needs about 3 KB for the signature. */
#ifndef OTA_H
#define OTA_H

#include <stdint.h>

enum ota_result {
    OTA_DONE,
    OTA_BAD_FORMAT,       /* no update, a truncated one, or of a newer version */
    OTA_BAD_SIGNATURE,    /* not signed by the key that this firmware trusts */
    OTA_OLD_COUNTER,      /* not newer than what runs */
    OTA_OTHER_LAYOUT,     /* of another network: other shapes or operators */
    OTA_OTHER_BASE,       /* leaves out a part that is not the one that runs */
    OTA_BAD_DIGEST,       /* a part is damaged */
    OTA_NO_ROOM,          /* the slots are too small */
    OTA_NOT_WRITTEN,      /* flash did not take it */
    OTA_SELF_TEST_FAILED  /* the new parts compute something else than they should: the old ones run on */
};

/* What a board gives. Slots are mapped into memory, aligned to 8, and hold slot_bytes each. Functions return 0 when done. */
struct ota_flash {
    const uint8_t *slot[2];
    uint32_t slot_bytes;
    int (*erase)(int slot);
    int (*write)(int slot, uint32_t offset, const uint8_t *bytes, uint32_t count); /* offset and count: multiples of 8 */
};

/* Call once at the start: uses the newest whole slot, or the parts that were built in. Returns the counter of what runs, 0 for built in. */
uint32_t ota_boot(const struct ota_flash *flash);

/* Check an update of `count` bytes in memory, write it to the other slot, test it, use it. Call after ota_boot, never during an inference. */
enum ota_result ota_apply(const struct ota_flash *flash, const uint8_t *update, uint32_t count, const uint8_t key[32]);

#endif
