"""The door: how agents without the shared folder reach it, over a NATS broker."""
