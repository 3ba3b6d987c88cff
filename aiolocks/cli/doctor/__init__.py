"""`aiolocks doctor`: checks a server, and says how to fix what is wrong for locks."""
