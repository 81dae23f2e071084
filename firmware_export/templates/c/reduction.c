/* in[a][reduced][b][reduced][c] -> out[a][b][c] */
struct mean {
    int32_t a, reduced_outer, b, reduced_inner, c;
};
