"""The task that a federation learns: classes, numbers, or what is normal."""
