"""The process and its machine: atomic files, memory, signals, standard error, progress."""
