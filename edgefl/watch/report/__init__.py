"""Reports of finished federations as one page."""
