"""Masked image modelling: predict patches from those around them (BEiT, MAE, MaskFeat)."""
