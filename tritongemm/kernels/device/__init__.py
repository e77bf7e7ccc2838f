"""Device code, imported at first launch. One idea a file; the tile order is written once."""
