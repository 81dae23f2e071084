/* Runs the model on each sample of samples.bin, writes the raw outputs to outputs.bin, and prints class and time of each sample.
 * samples.bin holds consecutive int8 inputs of MODEL_INPUT_BYTES. outputs.bin gets MODEL_OUTPUT_BYTES for each one. */
#include "board.h"
#include "model.h"
#include "print.h"

#ifdef MODEL_PROFILE
/* The model calls this after each layer. The time since the previous call belongs to that layer. */
#define LAYERS 256
static uint32_t layer_ticks[LAYERS];
static uint32_t layer_began;
static int layers;

void model_profile(int layer);
void model_profile(int layer)
{
    uint32_t now = board_ticks();
    if (layer >= 0 && layer < LAYERS) {
        layer_ticks[layer] += now - layer_began;
        layers = layer + 1 > layers ? layer + 1 : layers;
    }
    layer_began = now;
}
#endif

static int highest(const int8_t *output)
{
    int best = 0;
    for (int i = 1; i < MODEL_OUTPUT_BYTES; i++) {
        best = output[i] > output[best] ? i : best;
    }
    return best;
}

int main(void)
{
    int8_t *const input = model_input(), *const output = model_output(); /* in the model's arena */
    int samples = board_open("samples.bin", 0);
    int outputs = board_open("outputs.bin", 1);
    uint32_t count = 0, stack = 0;
    if (samples < 0 || outputs < 0) {
        board_print("cannot open samples.bin or outputs.bin in this directory\n");
        return 2;
    }
    board_mark_stack();
    while (board_read(samples, input, MODEL_INPUT_BYTES) == MODEL_INPUT_BYTES) {
        uint32_t ticks;
        uint32_t began = board_ticks();
#ifdef MODEL_PROFILE
        layer_began = began;
#endif
        model_invoke(input, output);
        ticks = board_ticks() - began;
        if (count == 0) {
            stack = board_stack_used();
        }
        if (board_write(outputs, output, MODEL_OUTPUT_BYTES)) {
            board_print("cannot write outputs.bin\n");
            return 3;
        }
        print_number("sample ", count++);
        print_number(": class ", (uint32_t)highest(output));
        print_number(", ticks ", ticks);
        board_print("\n");
    }
#ifdef MODEL_PROFILE
    for (int layer = 0; layer < layers; layer++) {
        print_number("layer ", (uint32_t)layer);
        print_number(": ticks ", layer_ticks[layer]);
        board_print("\n");
    }
#endif
    print_number("done: samples ", count);
    print_number(", stack ", stack);
    board_print("\n");
    return 0;
}
