/* Updates of a model's parts (trunk, head, gate, experts) without a new firmware. They are signed, for one device, counted, and tested before
   use.

   Flash holds two slots and two counter pages. A slot holds all parts one after another. Its last element, which is written last, is a
   record with the update's counter and a digest of the whole slot. A slot without a valid record is ignored. A power cut at any point
   therefore leaves the previous model. The counter pages hold the highest counter that was ever accepted. If both slots are lost, the
   built-in model runs, and an older update is still refused. The signature needs about 3 KB of stack. */
#ifndef OTA_H
#define OTA_H

#include <stdint.h>

enum ota_result {
    OTA_DONE,
    OTA_BAD_FORMAT,       /* not an update, too short or too long, or without ota_begin */
    OTA_BAD_SIGNATURE,    /* not signed by the key that this firmware trusts */
    OTA_OLD_COUNTER,      /* not newer than the highest accepted counter */
    OTA_OTHER_LAYOUT,     /* for another network, with other shapes or operators */
    OTA_OTHER_BASE,       /* omits a part that differs from the one in use */
    OTA_BAD_DIGEST,       /* a part is damaged */
    OTA_NO_ROOM,          /* the slots or the counter pages are too small */
    OTA_NOT_WRITTEN,      /* flash did not store it */
    OTA_SELF_TEST_FAILED, /* the new parts computed other outputs than expected; the old ones stay in use */
    OTA_OTHER_DEVICE,     /* made for another device */
    OTA_OTHER_VERSION     /* has another format version: make it again with the edgefl that made this firmware */
};

/* Areas of flash. Each one is erased as a whole. */
enum ota_area { OTA_SLOT_0, OTA_SLOT_1, OTA_COUNTER_0, OTA_COUNTER_1, OTA_AREAS };

enum { OTA_COUNTER_RECORD = 16 };

/* The flash of a board. Areas are mapped into memory and aligned to 8 bytes. A slot holds slot_bytes. A counter page holds counter_bytes, at
   least OTA_COUNTER_RECORD, and is erased once in counter_bytes / OTA_COUNTER_RECORD updates. Erased bytes read as 0xff. Functions
   return 0 on success. Keep the counter pages when you flash a new firmware: erasing them allows older updates again. */
struct ota_flash {
    const uint8_t *area[OTA_AREAS];
    uint32_t slot_bytes;
    uint32_t counter_bytes;
    int (*erase)(enum ota_area area);
    int (*write)(enum ota_area area, uint32_t offset, const uint8_t *bytes, uint32_t count); /* offset and count: multiples of 8 */
};

/* Call once at the start. It uses the newest intact slot, or the built-in parts. A slot of another format version or layout is ignored.
   It returns the counter of the update in use, 0 for the built-in parts. */
uint32_t ota_boot(const struct ota_flash *flash);

/* The highest accepted counter. Call after ota_boot. An update needs a higher counter, or this one if that update does not run. */
uint32_t ota_counter(void);

/* An update comes in pieces of any size: ota_begin, ota_write for each piece, ota_finish. Inferences are allowed between these calls, but
   not at the same time. The manifest at the start of an update is checked first. Only then does ota_write erase the slot that is not in
   use, and writes each part to it. ota_finish tests the new parts and uses them. Until it returns OTA_DONE, the old parts stay in use.
   A model that keeps a state between inferences begins a new sequence with each ota_finish that tests.

   After an error, begin again with the first byte. ota_begin and ota_boot drop an update that was not finished. */

/* device: SHA-256 of this device's id. An update is accepted if it is for this device, or for all devices.
   flash, key and device must stay in memory until ota_finish. Call after ota_boot. */
void ota_begin(const struct ota_flash *flash, const uint8_t key[32], const uint8_t device[32]);

/* Returns OTA_DONE while nothing is wrong. Otherwise the update is refused: the rest of it is ignored, and ota_finish returns the same. */
enum ota_result ota_write(const uint8_t *bytes, uint32_t count);

/* Call after the last piece. It returns OTA_BAD_FORMAT if the update is not complete. */
enum ota_result ota_finish(void);

#endif
