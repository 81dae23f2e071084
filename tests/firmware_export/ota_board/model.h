/* A handwritten model with two parts: output = sum of input + trunk, and the same times the expert's weight. */
#ifndef MODEL_H
#define MODEL_H
#include <stdint.h>
#define MODEL_INPUT_BYTES 5
#define MODEL_OUTPUT_BYTES 2
#define MODEL_PARTS 2
#define MODEL_LAYOUT "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
extern const void *model_part[MODEL_PARTS];
extern const uint32_t model_part_bytes[MODEL_PARTS];
int8_t *model_input(void);
int8_t *model_output(void);
void model_invoke(const int8_t *input, int8_t *output);
#endif
