"""The runtime: carries events and actions between the pure core and the world."""
