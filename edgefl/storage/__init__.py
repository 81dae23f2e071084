"""What is kept on disk: checkpoints, and the directory of a device."""
