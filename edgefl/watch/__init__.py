"""What people see of a federation: monitor, dashboard, report, loggers and audit."""
