"""A program that ends as one does that meets an unknown instruction."""

import os
import signal

os.kill(os.getpid(), signal.SIGILL)
