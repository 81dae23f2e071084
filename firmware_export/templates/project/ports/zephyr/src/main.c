/* Not tested on hardware. */
#include <zephyr/kernel.h>

#include "model.h"

static int8_t input[MODEL_INPUT_BYTES]; /* round(value / MODEL_INPUT_SCALE) + MODEL_INPUT_ZERO_POINT */

int main(void)
{
    uint32_t began = k_cycle_get_32();
    int found = model_classify(input);
    printk("class %d, cycles %u\n", found, k_cycle_get_32() - began);
    return 0;
}
