/* Four nested loops; a step of 0 repeats a side that is broadcast. */
struct elementwise {
    int32_t count[4], step_a[4], step_b[4];
};
