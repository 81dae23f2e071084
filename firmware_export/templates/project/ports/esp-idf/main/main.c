/* Not tested on hardware. */
#include <stdio.h>

#include "esp_timer.h"
#include "model.h"

static int8_t input[MODEL_INPUT_BYTES]; /* round(value / MODEL_INPUT_SCALE) + MODEL_INPUT_ZERO_POINT */

void app_main(void)
{
    int64_t began = esp_timer_get_time();
    int found = model_classify(input);
    printf("class %d, microseconds %lld\n", found, (long long)(esp_timer_get_time() - began));
}
