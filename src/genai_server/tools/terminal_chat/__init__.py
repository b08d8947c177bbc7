"""The dialogue of `genai-server chat` with its user: reading questions, running commands, showing answers."""
