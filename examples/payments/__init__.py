"""A payments service: requests take effect once, balances hold, statements come from a cache."""
