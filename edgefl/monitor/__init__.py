"""What a person sees of a federation: a view folded from its messages, in a terminal, in a browser, as
lines.
"""
