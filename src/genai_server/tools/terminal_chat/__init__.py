"""The chat of `genai-server chat` in the terminal: reads questions, runs commands and shows answers."""
