"""`ls`, `show`, `release` and `top`: who holds what, and freeing it."""
