"""Log-mel spectrograms, equal to those of onnxruntime-genai's processor for Whisper up to rounding.

They differ from the spectrograms of transformers at the ends of a recording, which onnxruntime-genai continues with
silence, and transformers with a reflection.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from transformers.audio_utils import mel_filter_bank

from .speech_sounds import SAMPLE_RATE

MELS, FFT, HOP = 80, 400, 160


def log_mel(samples: np.ndarray) -> torch.Tensor:
    """Frames [MELS, frames], one for each 160 of the samples [n]; silence is the least of all values."""
    window, filters = _constants()
    spectrum = torch.stft(
        torch.from_numpy(samples), FFT, HOP, window=window, center=True, pad_mode="constant", return_complex=True
    )
    power = spectrum[:, :-1].abs() ** 2
    logs = (filters @ power).clamp(min=1e-10).log10()
    result: torch.Tensor = (torch.maximum(logs, logs.max() - 8) + 4) / 4
    return result


@functools.cache
def _constants() -> tuple[torch.Tensor, torch.Tensor]:
    filters = mel_filter_bank(1 + FFT // 2, MELS, 0.0, SAMPLE_RATE / 2, SAMPLE_RATE, norm="slaney", mel_scale="slaney")
    return torch.hann_window(FFT), torch.from_numpy(filters.T.astype(np.float32))
