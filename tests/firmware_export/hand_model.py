"""A handwritten model with the interface of model.h, with three inputs and two outputs.

The same function exists in numpy.
"""

import numpy as np

HEADER = """#ifndef MODEL_H
#define MODEL_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define MODEL_SHA256 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define MODEL_EDGEFL_VERSION "0.0.0"
#define MODEL_INPUT_BYTES 3
#define MODEL_INPUT_VALUES 3
#define MODEL_OUTPUT_BYTES 2
#define MODEL_OUTPUT_VALUES 2
#define MODEL_RAM_BYTES 13
void model_invoke(const int8_t *input, int8_t *output);
int8_t *model_input(void);
int8_t *model_output(void);
int model_classify(const int8_t *input);
static inline int8_t model_quantize_input(float value)
{
    return (int8_t)value;
}
#ifdef __cplusplus
}
#endif
#endif
"""
SOURCE = """#include "model.h"
extern const int8_t model_weights[6];
static int32_t sums[2];
static int8_t memory[5];
int8_t *model_input(void)
{
    return memory;
}
int8_t *model_output(void)
{
    return memory + 3;
}
#ifdef MODEL_PROFILE
extern void model_profile(int layer);
#endif
void model_invoke(const int8_t *input, int8_t *output)
{
    for (int o = 0; o < 2; o++) {
        sums[o] = 0;
        for (int i = 0; i < 3; i++) {
            sums[o] += model_weights[o * 3 + i] * input[i];
        }
    }
#ifdef MODEL_PROFILE
    model_profile(0);
#endif
    for (int o = 0; o < 2; o++) {
        int32_t value = sums[o] / 16;
        output[o] = (int8_t)(value < -128 ? -128 : value > 127 ? 127 : value);
    }
#ifdef MODEL_PROFILE
    model_profile(1);
#endif
}
int model_classify(const int8_t *input)
{
    int8_t output[2];
    model_invoke(input, output);
    return output[1] > output[0];
}
"""
WEIGHTS = np.array([[1, -2, 3], [-4, 5, 6]])
CONSTANTS = (
    '#include "model.h"\nconst int8_t model_weights[6];\nconst int8_t model_weights[6] = {1, -2, 3, -4, 5, '
    "6};\n"
)
FILES = {"model.h": HEADER, "model.c": SOURCE, "model_weights.c": CONSTANTS}


def compute_outputs(inputs: np.ndarray) -> np.ndarray:
    """Return the outputs, shape (n, 2), int8, of inputs, shape (n, 3), int8.

    C's division rounds towards zero.
    """
    sums = inputs.astype(int) @ WEIGHTS.T
    return np.clip(np.sign(sums) * (np.abs(sums) // 16), -128, 127).astype(np.int8)
