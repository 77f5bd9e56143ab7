"""A trained model and what one does with it: answers, measurements, packs, and an exact, faster copy."""
