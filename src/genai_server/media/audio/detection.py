"""Options with which a request may adjust how speech is distinguished from silence (voice activity detection)."""

from typing import NamedTuple

from genai_server.model_files.speech_and_vision import SAMPLE_RATE


class Detection(NamedTuple):
    """Options of the voice activity detector. The defaults also detect quiet and short words."""

    # A frame of 32 ms below this probability is silent.
    threshold: float = 0.2
    # Samples that are kept before speech: the detector may miss half a second of a word that begins softly.
    padding: int = SAMPLE_RATE
    # Samples without speech at which a window may end; 0 for pauses of any length, preferably long ones.
    pause: int = 0
