/* Four nested loops. A step of 0 repeats a broadcast operand. */
struct elementwise {
    int32_t count[4], step_a[4], step_b[4];
};
