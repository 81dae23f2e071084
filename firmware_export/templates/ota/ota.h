/* Updates of a model's parts (trunk, gate, experts) without a new firmware: signed, for one device, counted, tested before they are used.

   Flash holds two slots and two counter pages. A slot is all parts one after another and, written last, a record with the update's
   counter and a digest of the whole; a slot without a fitting record does not exist, so a cut of power at any point leaves the model
   that ran. The counter pages hold the highest counter that was ever taken. Both slots may be lost: the built-in model runs, and an
   older update is still refused. The stack needs about 3 KB for the signature. */
#ifndef OTA_H
#define OTA_H

#include <stdint.h>

enum ota_result {
    OTA_DONE,
    OTA_BAD_FORMAT,       /* no update, or a truncated one */
    OTA_BAD_SIGNATURE,    /* not signed by the key that this firmware trusts */
    OTA_OLD_COUNTER,      /* not newer than the highest counter that was taken */
    OTA_OTHER_LAYOUT,     /* of another network: other shapes or operators */
    OTA_OTHER_BASE,       /* leaves out a part that is not the one that runs */
    OTA_BAD_DIGEST,       /* a part is damaged */
    OTA_NO_ROOM,          /* the slots or the counter pages are too small */
    OTA_NOT_WRITTEN,      /* flash did not take it */
    OTA_SELF_TEST_FAILED, /* the new parts compute something else than they should: the old ones run on */
    OTA_OTHER_DEVICE,     /* made for another device */
    OTA_OTHER_VERSION     /* of another format version: make it again with the edgefl that made this firmware */
};

/* What is erased as a whole, and nothing beside it. */
enum ota_area { OTA_SLOT_0, OTA_SLOT_1, OTA_COUNTER_0, OTA_COUNTER_1, OTA_AREAS };

enum { OTA_COUNTER_RECORD = 16 };

/* What a board gives. Areas are mapped into memory and aligned to 8. A slot holds slot_bytes; a counter page holds counter_bytes,
   OTA_COUNTER_RECORD at least, and is erased once in counter_bytes / OTA_COUNTER_RECORD updates. Erased bytes read as 0xff. Functions
   return 0 when done. Keep the counter pages when you flash a new firmware: erasing them allows older updates again. */
struct ota_flash {
    const uint8_t *area[OTA_AREAS];
    uint32_t slot_bytes;
    uint32_t counter_bytes;
    int (*erase)(enum ota_area area);
    int (*write)(enum ota_area area, uint32_t offset, const uint8_t *bytes, uint32_t count); /* offset and count: multiples of 8 */
};

/* Call once at the start: uses the newest whole slot, or the parts that were built in. A slot of another format version or layout is
   ignored. Returns the counter of what runs, 0 for built in. */
uint32_t ota_boot(const struct ota_flash *flash);

/* The highest counter that was taken, after ota_boot. An update must have a higher one, or this one where it does not run. */
uint32_t ota_counter(void);

/* Check an update of `count` bytes in memory, write it to the other slot, test it, use it. Call after ota_boot, never during an inference.
   device: SHA-256 of this device's id. An update is taken when it is for this device, or for all devices. */
enum ota_result ota_apply(const struct ota_flash *flash, const uint8_t *update, uint32_t count, const uint8_t key[32],
                          const uint8_t device[32]);

#endif
