"""Who may speak for whom: certificates for the connection, signatures for what is said, one enrolment file
for each board.
"""
