"""Embeddings: neighbours, instances and labels together (Grafit and its kin)."""
