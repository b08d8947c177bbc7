"""Attacks of one API key on another one; each module with a FAMILY is found by scripts/fairness.py."""
