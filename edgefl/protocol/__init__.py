"""How machines talk: messages, link, security, and the two machines, server and device."""
