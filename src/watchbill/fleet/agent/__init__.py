"""The agent: the process that claims tasks, runs them and reports how they ended."""
