"""What tasks with a teacher share: where teachers come from, and what they answered before."""
