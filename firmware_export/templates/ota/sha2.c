#include "sha2.h"

/* The first 64 bits of the fractional parts of the cube roots of the first 80 primes, and of the square roots of the first 8.
   SHA-256 uses the first 32 bits of the same numbers (64 of them). */
static const uint64_t ROUND[80] = {
    UINT64_C(0x428a2f98d728ae22), UINT64_C(0x7137449123ef65cd), UINT64_C(0xb5c0fbcfec4d3b2f), UINT64_C(0xe9b5dba58189dbbc),
    UINT64_C(0x3956c25bf348b538), UINT64_C(0x59f111f1b605d019), UINT64_C(0x923f82a4af194f9b), UINT64_C(0xab1c5ed5da6d8118),
    UINT64_C(0xd807aa98a3030242), UINT64_C(0x12835b0145706fbe), UINT64_C(0x243185be4ee4b28c), UINT64_C(0x550c7dc3d5ffb4e2),
    UINT64_C(0x72be5d74f27b896f), UINT64_C(0x80deb1fe3b1696b1), UINT64_C(0x9bdc06a725c71235), UINT64_C(0xc19bf174cf692694),
    UINT64_C(0xe49b69c19ef14ad2), UINT64_C(0xefbe4786384f25e3), UINT64_C(0x0fc19dc68b8cd5b5), UINT64_C(0x240ca1cc77ac9c65),
    UINT64_C(0x2de92c6f592b0275), UINT64_C(0x4a7484aa6ea6e483), UINT64_C(0x5cb0a9dcbd41fbd4), UINT64_C(0x76f988da831153b5),
    UINT64_C(0x983e5152ee66dfab), UINT64_C(0xa831c66d2db43210), UINT64_C(0xb00327c898fb213f), UINT64_C(0xbf597fc7beef0ee4),
    UINT64_C(0xc6e00bf33da88fc2), UINT64_C(0xd5a79147930aa725), UINT64_C(0x06ca6351e003826f), UINT64_C(0x142929670a0e6e70),
    UINT64_C(0x27b70a8546d22ffc), UINT64_C(0x2e1b21385c26c926), UINT64_C(0x4d2c6dfc5ac42aed), UINT64_C(0x53380d139d95b3df),
    UINT64_C(0x650a73548baf63de), UINT64_C(0x766a0abb3c77b2a8), UINT64_C(0x81c2c92e47edaee6), UINT64_C(0x92722c851482353b),
    UINT64_C(0xa2bfe8a14cf10364), UINT64_C(0xa81a664bbc423001), UINT64_C(0xc24b8b70d0f89791), UINT64_C(0xc76c51a30654be30),
    UINT64_C(0xd192e819d6ef5218), UINT64_C(0xd69906245565a910), UINT64_C(0xf40e35855771202a), UINT64_C(0x106aa07032bbd1b8),
    UINT64_C(0x19a4c116b8d2d0c8), UINT64_C(0x1e376c085141ab53), UINT64_C(0x2748774cdf8eeb99), UINT64_C(0x34b0bcb5e19b48a8),
    UINT64_C(0x391c0cb3c5c95a63), UINT64_C(0x4ed8aa4ae3418acb), UINT64_C(0x5b9cca4f7763e373), UINT64_C(0x682e6ff3d6b2b8a3),
    UINT64_C(0x748f82ee5defb2fc), UINT64_C(0x78a5636f43172f60), UINT64_C(0x84c87814a1f0ab72), UINT64_C(0x8cc702081a6439ec),
    UINT64_C(0x90befffa23631e28), UINT64_C(0xa4506cebde82bde9), UINT64_C(0xbef9a3f7b2c67915), UINT64_C(0xc67178f2e372532b),
    UINT64_C(0xca273eceea26619c), UINT64_C(0xd186b8c721c0c207), UINT64_C(0xeada7dd6cde0eb1e), UINT64_C(0xf57d4f7fee6ed178),
    UINT64_C(0x06f067aa72176fba), UINT64_C(0x0a637dc5a2c898a6), UINT64_C(0x113f9804bef90dae), UINT64_C(0x1b710b35131c471b),
    UINT64_C(0x28db77f523047d84), UINT64_C(0x32caab7b40c72493), UINT64_C(0x3c9ebe0a15c9bebc), UINT64_C(0x431d67c49c100d4c),
    UINT64_C(0x4cc5d4becb3e42b6), UINT64_C(0x597f299cfc657e2a), UINT64_C(0x5fcb6fab3ad6faec), UINT64_C(0x6c44198c4a475817),
};
static const uint64_t START[8] = {
    UINT64_C(0x6a09e667f3bcc908), UINT64_C(0xbb67ae8584caa73b), UINT64_C(0x3c6ef372fe94f82b), UINT64_C(0xa54ff53a5f1d36f1),
    UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f), UINT64_C(0x1f83d9abfb41bd6b), UINT64_C(0x5be0cd19137e2179),
};

static uint32_t turn32(uint32_t x, unsigned n) { return x >> n | x << (32 - n); }
static uint64_t turn64(uint64_t x, unsigned n) { return x >> n | x << (64 - n); }

static void block256(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[16], v[8];
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 0; i < 8; i++)
        v[i] = state[i];
    for (unsigned i = 0; i < 64; i++) {
        if (i >= 16) {
            uint32_t a = w[(i + 1) & 15], b = w[(i + 14) & 15];
            w[i & 15] += (turn32(a, 7) ^ turn32(a, 18) ^ a >> 3) + w[(i + 9) & 15] + (turn32(b, 17) ^ turn32(b, 19) ^ b >> 10);
        }
        uint32_t one = v[7] + (turn32(v[4], 6) ^ turn32(v[4], 11) ^ turn32(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6]))
                       + (uint32_t)(ROUND[i] >> 32) + w[i & 15];
        uint32_t two = (turn32(v[0], 2) ^ turn32(v[0], 13) ^ turn32(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        for (unsigned k = 7; k > 0; k--)
            v[k] = v[k - 1];
        v[4] += one;
        v[0] = one + two;
    }
    for (unsigned i = 0; i < 8; i++)
        state[i] += v[i];
}

void sha256_begin(struct sha256 *hash)
{
    for (unsigned i = 0; i < 8; i++)
        hash->state[i] = (uint32_t)(START[i] >> 32);
    hash->bytes = 0;
}

void sha256_add(struct sha256 *hash, const uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        hash->block[hash->bytes++ % 64] = bytes[i];
        if (hash->bytes % 64 == 0)
            block256(hash->state, hash->block);
    }
}

void sha256_end(struct sha256 *hash, uint8_t digest[32])
{
    const uint8_t one = 0x80, zero = 0;
    uint64_t bits = (uint64_t)hash->bytes * 8;
    sha256_add(hash, &one, 1);
    while (hash->bytes % 64 != 56)
        sha256_add(hash, &zero, 1);
    for (unsigned i = 0; i < 8; i++) {
        uint8_t byte = (uint8_t)(bits >> (56 - 8 * i));
        sha256_add(hash, &byte, 1);
    }
    for (unsigned i = 0; i < 32; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256_of(const uint8_t *bytes, uint32_t count, uint8_t digest[32])
{
    struct sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, bytes, count);
    sha256_end(&hash, digest);
}

static void block512(uint64_t state[8], const uint8_t block[128])
{
    uint64_t w[16], v[8];
    for (unsigned i = 0; i < 16; i++) {
        w[i] = 0;
        for (unsigned k = 0; k < 8; k++)
            w[i] = w[i] << 8 | block[8 * i + k];
    }
    for (unsigned i = 0; i < 8; i++)
        v[i] = state[i];
    for (unsigned i = 0; i < 80; i++) {
        if (i >= 16) {
            uint64_t a = w[(i + 1) & 15], b = w[(i + 14) & 15];
            w[i & 15] += (turn64(a, 1) ^ turn64(a, 8) ^ a >> 7) + w[(i + 9) & 15] + (turn64(b, 19) ^ turn64(b, 61) ^ b >> 6);
        }
        uint64_t one = v[7] + (turn64(v[4], 14) ^ turn64(v[4], 18) ^ turn64(v[4], 41)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + ROUND[i]
                       + w[i & 15];
        uint64_t two = (turn64(v[0], 28) ^ turn64(v[0], 34) ^ turn64(v[0], 39)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        for (unsigned k = 7; k > 0; k--)
            v[k] = v[k - 1];
        v[4] += one;
        v[0] = one + two;
    }
    for (unsigned i = 0; i < 8; i++)
        state[i] += v[i];
}

void sha512_of(const uint8_t *const piece[3], const uint32_t count[3], uint8_t digest[64])
{
    uint64_t state[8];
    uint8_t block[128];
    uint32_t bytes = 0;
    for (unsigned i = 0; i < 8; i++)
        state[i] = START[i];
    for (unsigned p = 0; p < 3; p++)
        for (uint32_t i = 0; i < count[p]; i++) {
            block[bytes++ % 128] = piece[p][i];
            if (bytes % 128 == 0)
                block512(state, block);
        }
    uint64_t bits = (uint64_t)bytes * 8;
    unsigned at = bytes % 128;
    block[at++] = 0x80;
    if (at > 112) {
        while (at < 128)
            block[at++] = 0;
        block512(state, block);
        at = 0;
    }
    while (at < 120)
        block[at++] = 0;
    for (unsigned i = 0; i < 8; i++)
        block[120 + i] = (uint8_t)(bits >> (56 - 8 * i));
    block512(state, block);
    for (unsigned i = 0; i < 64; i++)
        digest[i] = (uint8_t)(state[i / 8] >> (56 - 8 * (i % 8)));
}
