"""The sentence about equal outputs names the number of samples of each place."""

from firmware_export.certificate.parity import describe_equal_outputs


def test_sentence_has_the_number_of_samples_of_each_place() -> None:
    same = {"tflite-micro": 40, "host": 40, "cortex-m4": 40}
    assert describe_equal_outputs(same, "samples") == (
        "40 samples, every output byte the same: tflite-micro, host, cortex-m4"
    )
    different = {"tflite-micro": 183, "cortex-m0": 50, "cortex-m4": 50, "host": 183}
    assert describe_equal_outputs(different, "random inputs") == (
        "183 random inputs, every output byte the same: tflite-micro, host; the first 50 of them: cortex-m0, "
        "cortex-m4"
    )
