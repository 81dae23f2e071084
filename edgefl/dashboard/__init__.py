"""The federation in a browser: a server on this machine folds MQTT messages, and a static page shows them.
Read-only.
"""
