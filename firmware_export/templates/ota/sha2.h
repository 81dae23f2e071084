/* SHA-256 and SHA-512 (FIPS 180-4). SHA-256 identifies an update's parts, SHA-512 is the hash of Ed25519 signatures. */
#ifndef SHA2_H
#define SHA2_H

#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint32_t bytes;
    uint8_t block[64];
};

void sha256_begin(struct sha256 *hash);
void sha256_add(struct sha256 *hash, const uint8_t *bytes, uint32_t count);
void sha256_end(struct sha256 *hash, uint8_t digest[32]);
void sha256_of(const uint8_t *bytes, uint32_t count, uint8_t digest[32]);

/* The hash of three consecutive pieces, together below 2^29 bytes. */
void sha512_of(const uint8_t *const piece[3], const uint32_t count[3], uint8_t digest[64]);

#endif
