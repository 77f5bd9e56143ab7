"""Classification: images and the names of what they show."""
