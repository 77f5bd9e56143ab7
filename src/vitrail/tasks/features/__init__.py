"""Features of a teacher, learnt without labels."""
