"""The client libraries: what a session takes from the client that it was given."""
