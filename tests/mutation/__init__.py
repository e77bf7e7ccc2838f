"""Would the tests notice? One small mistake at a time in a copy of the package."""
