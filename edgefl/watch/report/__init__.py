"""Reports of finished federations as one page, and figures of the papers."""
