"""How a session waits: requests that may be refused, those who wait, and what wakes them."""
