"""A look at the samples of devices before they train: class balance, ranges, copies, outliers, mistakes."""
