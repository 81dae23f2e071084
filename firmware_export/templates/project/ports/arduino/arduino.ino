// Not tested on hardware. Copy model.h, model.c and model_weights.c into this folder.
extern "C" {
#include "model.h"
}

static int8_t input[MODEL_INPUT_BYTES];  // round(value / MODEL_INPUT_SCALE) + MODEL_INPUT_ZERO_POINT

void setup() { Serial.begin(115200); }

void loop() {
  unsigned long began = micros();
  int found = model_classify(input);
  unsigned long took = micros() - began;
  Serial.print("class ");
  Serial.print(found);
  Serial.print(", microseconds ");
  Serial.println(took);
  delay(1000);
}
