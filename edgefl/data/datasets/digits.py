"""The handwritten digits of scikit-learn (UCI, 1,797 scans of 8x8 pixels), enlarged to 28x28x1.

The scans are part of scikit-learn.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, 1998.
"""

import numpy as np

from edgefl.base.rng import derive_rng
from edgefl.data.dataset import Dataset, divide_samples, resize_bilinear

TEST_SHARE = 0.2


def load() -> Dataset:
    """Load 1,438 training and 359 test scans. The split is always the same.

    Returns:
        The data set. Scans have shape (n, 28, 28, 1), float32.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = resize_bilinear(np.asarray(images, np.float32).reshape(-1, 8, 8) / np.float32(16), 28, 28)[..., None]
    y = np.asarray(labels, np.int64)
    order = derive_rng(0, 0, "digits").permutation(len(y))
    test, train = np.split(order, [int(TEST_SHARE * len(y))])
    return divide_samples(x, y, train, test, num_classes=10)
