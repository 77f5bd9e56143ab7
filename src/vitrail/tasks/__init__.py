"""What can be learnt: one folder a task, one row of the table."""
