"""What all tests share: quiet TensorFlow, and property tests that draw the same examples on every run."""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

settings.register_profile("edgefl", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgefl")
