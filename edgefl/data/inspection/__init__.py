"""Inspects the samples of devices before training: class balance, ranges, copies, outliers and mistakes."""
