"""Explains an error of Keras, or of a user's function, in one line."""

import re


def explain_failure(error: Exception) -> str:
    """Return the reason of an error. Keras puts lines around it that say only where the error was."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith("Exception encountered when calling")]
    return (reasons or [type(error).__name__])[0]
