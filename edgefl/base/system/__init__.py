"""The process and its machine: atomic files, memory, signals, logs and progress."""
