"""Requests and their answers, without a connection: scripts, commands, calls, keys."""
