struct convolution {
    int32_t in_height, in_width, in_channels, out_height, out_width, out_channels;
    int32_t kernel_height, kernel_width, stride_height, stride_width, dilation_height, dilation_width, pad_top, pad_left;
};
