#include "model.h"
static const int32_t trunk[1] = {7};
static const int8_t expert[35] = {3};
const void *model_part[MODEL_PARTS] = {trunk, expert};
const uint32_t model_part_bytes[MODEL_PARTS] = {4, sizeof expert};
static int8_t memory[MODEL_INPUT_BYTES + MODEL_OUTPUT_BYTES];
int8_t *model_input(void) { return memory; }
int8_t *model_output(void) { return memory + MODEL_INPUT_BYTES; }
void model_invoke(const int8_t *input, int8_t *output)
{
    int32_t sum = *(const int32_t *)model_part[0];
    for (int i = 0; i < MODEL_INPUT_BYTES; i++)
        sum += input[i];
    output[0] = (int8_t)(sum & 127);
    output[1] = (int8_t)(((const int8_t *)model_part[1])[0] * (sum & 31));
}
