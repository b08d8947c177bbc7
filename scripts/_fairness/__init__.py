"""Attacks of one API key on another one."""
