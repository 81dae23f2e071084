"""The MQTT link."""
