"""The directories of devices, aggregators, runs and demos, and the encoding of records in their files."""
