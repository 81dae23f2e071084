"""The report of a finished federation as one page, and the papers' figures."""
