"""What an engineer measures on own hardware."""
