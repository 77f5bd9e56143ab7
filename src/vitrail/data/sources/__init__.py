"""Where data may lie: one reader per kind of place."""
