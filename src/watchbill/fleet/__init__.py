"""Fleet: a coordinator and agents that share nothing but a folder (FLEET-01 to FLEET-14).

Standard library, foundation and `plans` only: the machine that looks into the folder may be a Raspberry Pi without
compiled packages. docs/fleet.md describes the protocol and its laws.
"""
