"""The way to the nodes of a cluster, of which each serves some slots."""
