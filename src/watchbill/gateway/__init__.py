"""The gateway: everything that speaks HTTP to callers."""
