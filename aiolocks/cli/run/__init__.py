"""`aiolocks run NAME -- COMMAND`: a command that runs while a lock is held."""
