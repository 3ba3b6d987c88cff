"""`aiolocks doctor`: checks a server, and says how to mend what is wrong for locks."""
