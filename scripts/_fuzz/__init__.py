"""The targets of scripts/fuzz.py: what is sent to them, and which promises they must keep."""
