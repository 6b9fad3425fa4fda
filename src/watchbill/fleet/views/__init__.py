"""Views: the fleet and its batches as people and planners see them. No decision depends on one."""
