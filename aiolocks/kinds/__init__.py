"""The kinds of locks: one file a family, with its keys, its steps, its public classes and their leases."""
