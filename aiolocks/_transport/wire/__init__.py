"""The way to one server: its connection, or the client's pool, and what is heard on it."""
