"""Looking at what the server holds: locks and waiters, deadlocks, forced releases."""
