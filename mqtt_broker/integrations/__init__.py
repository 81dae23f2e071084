"""Home Assistant, Prometheus and other watchers of a federation."""
