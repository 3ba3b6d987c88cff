"""What the environment says."""

import os

REDIS = os.environ.get("SHOP_REDIS", "redis://localhost:6379")
DATABASE = os.environ.get("SHOP_DATABASE", "sqlite+aiosqlite:///shop.db")
OPERATOR = os.environ.get("SHOP_OPERATOR", "")
"""`name:password` of the operator who may see the dashboard; nobody may if it is empty."""
TTL = float(os.environ.get("SHOP_TTL", "5"))
"""Seconds after which what a process held that has died is free again."""
TICK = float(os.environ.get("SHOP_TICK", "60"))
"""Seconds from one stock-take to the next."""
