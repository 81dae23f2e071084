"""Messages and weights as bytes: topics, codecs, chunks. No input or output."""
