"""How a stage proceeds: steps, schedules, optimizer, averages."""
