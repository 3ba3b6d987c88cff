"""The way to independent masters, of which a majority decides."""
