"""The development broker and the mosquitto configuration for deployment."""
