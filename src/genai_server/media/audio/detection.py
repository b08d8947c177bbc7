"""Options with which a request may adjust how speech is distinguished from silence (voice activity detection).

voice_activity.py does the detection.
"""

from typing import NamedTuple

from genai_server.model_files.speech_and_vision import SAMPLE_RATE


class Detection(NamedTuple):
    """Options of the voice activity detector, which finds speech in a recording. The defaults also find quiet and short
    words.

    `threshold` is the probability of speech below which a frame of 32 ms counts as silent. `padding` is the number of
    samples (at 16 kHz) that are kept before speech. `pause` is the number of samples without speech at which a window
    may end; with 0, it may end at pauses of any length, preferably long ones.
    """

    # A frame of 32 ms below this probability is silent.
    threshold: float = 0.2
    # Samples that are kept before speech: the detector may miss half a second of a word that begins softly.
    padding: int = SAMPLE_RATE
    # Samples without speech at which a window may end; 0 for pauses of any length, preferably long ones.
    pause: int = 0
