"""The C of real mixtures gives the bytes of tflite-micro; it is strict C99, the same each time, and free of undefined behaviour."""
