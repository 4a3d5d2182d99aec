"""Running, tuning and comparing algorithms on the same tasks."""
