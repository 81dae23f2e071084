/* Counters of how a mixture's gate is used in the field. They contain no samples. Compared with the use at export, they show drift. */
#ifndef DRIFT_H
#define DRIFT_H

#include <stdint.h>

#include "model.h"

/* 16 + 8 * experts + 8 bytes, little-endian, for `edgefl export drift`. Counting stops at 2^24 inferences, before a sum overflows. */
struct drift {
    uint8_t mark[4]; /* "EFLD" */
    uint32_t experts;
    uint32_t inferences;
    uint32_t ties;                    /* inferences in which several experts had the largest value */
    uint32_t chosen[MODEL_EXPERTS];   /* inferences in which the expert had the largest value; a tie counts for the first */
    uint32_t weight[MODEL_EXPERTS];   /* sum of the expert's values, in units of 1/256 */
    uint64_t entropy;                 /* sum of -p log2 p over experts and inferences, in units of 2^-16 bit */
};

void drift_begin(struct drift *drift);

/* Count one inference: call after model_invoke with its model_gate. */
void drift_add(struct drift *drift, const int8_t gate[MODEL_EXPERTS]);

#endif
