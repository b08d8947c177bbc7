"""Helpers of the scripts that make and measure model directories; never needed to serve."""
