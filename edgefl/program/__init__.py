"""What a device runs: plan and learners. TensorFlow makes the plan: compiler and models."""
