"""Sentences about what stands out in a profile: what an experienced reader would look at first."""

from collections.abc import Iterator, Sequence

from genai_server.profiles.manifest import PREFILL, Session
from genai_server.profiles.report import PhaseTime, SlowToken

# If less than this share of the threads was at work, other processes used the cores. ONNX Runtime's threads wait by
# spinning, which counts as work, unless spinning is switched off.
_STARVED = 0.7
_MAX_OTHER = 0.3
_MAX_PREFILL = 0.4


def find(session: Session | None, phases: Sequence[PhaseTime], slow: Sequence[SlowToken]) -> list[str]:
    """Sentences about what stands out, the most general first."""
    found = [] if session is None else list(_of_session(session, phases))
    total = sum(phase.total_us for phase in phases)
    other = sum(phase.other_us for phase in phases)
    if total and other > _MAX_OTHER * total:
        found.append(f"{_percent(other, total)} of the time is in no kernel: the model is small for its many operators")
    for phase in phases:
        if phase.phase == PREFILL and phase.total_us > _MAX_PREFILL * total and phase.total_us < total:
            found.append(f"{_percent(phase.total_us, total)} of the time is the prompt ({phase.tokens} tokens)")
    if slow and slow[0].because:
        worst = slow[0]
        times, node = f"{worst.ratio:.1f} times the median", worst.because[0].name
        found.append(f"the slowest token, {worst.name}, took {times}, most in {node}")
    return found


def _of_session(session: Session, phases: Sequence[PhaseTime]) -> Iterator[str]:
    if session.device != "cpu":
        return
    if session.threads < session.cores:
        set_by = "GENAI_THREADS, or intra_op_num_threads,"
        yield f"operators run on {session.threads} of {session.cores} cores: {set_by} is {session.threads}"
    measured = [(phase.cores, phase.total_us) for phase in phases if phase.cores is not None]
    weight = sum(time for _, time in measured)
    at_work = sum(cores * time for cores, time in measured) / weight if weight else None
    if session.spins and at_work is not None and at_work < _STARVED * session.threads:
        yield f"only {at_work:.2f} cores were at work where {session.threads} could be: other processes used the rest"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"
