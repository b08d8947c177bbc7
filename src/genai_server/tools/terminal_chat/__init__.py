"""The commands that talk with a model in the terminal: `genai-server chat` and `run` (reading questions, executing
commands such as /help, showing answers) and `transcribe`.
"""
