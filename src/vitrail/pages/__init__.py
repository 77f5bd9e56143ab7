"""Pages for people: one frame, one look, one way to draw a chart. This room imports no other."""
