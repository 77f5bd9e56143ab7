"""Where models look: maps of their attention, pictures of them, and how well they name what matters."""
