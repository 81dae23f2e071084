"""What a federation has left in a folder, as one page and as the papers' figures."""
