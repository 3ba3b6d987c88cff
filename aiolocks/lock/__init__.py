"""How possession behaves in time. Knows no Lua, no key and no Redis."""
