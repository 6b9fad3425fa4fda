"""Fleet: a coordinator and agents that share nothing but a folder (FLEET-01 to FLEET-14).

Standard library, foundation and `plans` only: the machine that looks into the folder may be a Raspberry Pi without
compiled packages. docs/fleet.md describes the protocol and its laws.

    folder        the files that all sides share, and their forms
    state         a batch, from the journal that its coordinators wrote
    matching      which agent may run which task, and which task is next
    permissions   whether a command may run
    agent         claims, runs, reports
    coordinator   opens, offers, judges
    views         what people see of all this

Only `agent` and `coordinator` are processes, and neither imports the other.
"""
