"""Certificates, signatures, enrolment and secure aggregation."""
