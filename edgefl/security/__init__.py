"""Certificates, signatures and enrolment; `secagg/` adds updates up so that the server sees only the sum."""
