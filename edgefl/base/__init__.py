"""What every room needs: errors, records, configuration, tasks, names, files and the verdict's test."""
