"""`aiolocks demo`: what a lock does, shown with real processes on a real server, and checked."""
