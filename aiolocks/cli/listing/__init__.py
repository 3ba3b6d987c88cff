"""`ls`, `show`, `release`, `top` and `prefixes`: they show locks, and free them."""
