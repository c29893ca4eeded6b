"""Read sound recordings window by window: WAV, FLAC, OGG and MP3, through soundfile."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchmill.errors import StepError
from batchmill.version import install_command

try:
    import numpy as np
    import soundfile
except ImportError as error:
    raise StepError(f"Audio steps need soundfile: {install_command('audio')}") from error


class Recording(soundfile.SoundFile):
    """A recording that is read only from its beginning to its end.

    soundfile seeks after each block that it reads. After a seek, MP3 decoders restart and return
    silence for some milliseconds.
    """

    def seekable(self) -> bool:
        """Return False, so that soundfile does not seek."""
        return False


def open_recording(source: Path) -> Recording:
    """Open a recording and check its header.

    Args:
        source: The recording.

    Returns:
        The open recording.

    Raises:
        ValueError: It is empty, or shorter than its header says.
        soundfile.LibsndfileError: It is not a sound file.
    """
    recording = Recording(source)
    try:
        _check_length(recording)
        if recording.format == "OGG":
            _check_last_page(source)
    except BaseException:
        recording.close()
        raise
    return recording


def to_frames(seconds: float, overlap: float, rate: int) -> tuple[int, int]:
    """Convert the length and overlap of windows to frames.

    Args:
        seconds: The length of a window.
        overlap: The seconds that a window shares with the next.
        rate: The sample rate in Hz.

    Returns:
        The length of a window, and the distance from one window's start to the next.

    Raises:
        ValueError: The overlap is not below the length.
    """
    length = max(1, round(seconds * rate))
    hop = length - round(overlap * rate)
    if hop < 1:
        raise ValueError(f"overlap ({overlap} s) must be below seconds ({seconds} s)")
    return length, hop


def windows(
    recording: Recording, length: int, hop: int, dtype: str
) -> Iterator[tuple[int, np.ndarray]]:
    """Read a recording in windows. The last may be shorter. No window lies within another.

    Args:
        recording: The open recording.
        length: Frames per window.
        hop: Frames from one window's start to the next.
        dtype: The NumPy type of the samples.

    Yields:
        The number of the first frame, and the samples, [frames, channels].

    Raises:
        ValueError: The recording ends early, or has samples that are not finite.
    """
    # `length` may be far longer than the recording.
    window = _read(recording, min(length, recording.frames), dtype, 0)
    start = 0
    total = len(window)
    while len(window):
        yield start, window
        if len(window) < length:
            break
        fresh = _read(recording, min(hop, recording.frames), dtype, total)
        total += len(fresh)
        if not len(fresh):
            break
        window = np.concatenate([window[hop:], fresh])
        start += hop
    if total < recording.frames:
        raise ValueError(
            f"it ends after {total} of the {recording.frames} frames that its header announces: "
            "it is truncated or damaged"
        )


def _read(recording: Recording, frames: int, dtype: str, first: int) -> np.ndarray:
    blocks = []
    while frames > 0:
        # A damaged header may announce more frames than fit in memory, so read in blocks.
        asked = min(frames, _BLOCK_FRAMES)
        blocks.append(recording.read(asked, dtype=dtype, always_2d=True))
        frames = frames - asked if len(blocks[-1]) == asked else 0
    block = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    if block.dtype.kind == "f":
        odd = ~np.isfinite(block).all(axis=1)
        if odd.any():
            frame = first + int(odd.argmax())
            raise ValueError(
                f"its sample {frame}, at {frame / recording.samplerate:.3f} s, is not a number "
                "(NaN or infinite): it is damaged"
            )
    return block


def _check_length(recording: Any) -> None:
    if recording.frames == 0:
        raise ValueError("it holds no sound (0 frames)")
    # libsndfile silently corrects a wrong length. Only its log mentions it.
    for line in recording.extra_info.splitlines():
        if line.strip().startswith("data") and "should be" in line:
            announced = line.split(":", 1)[1].split("(")[0].strip()
            if announced.isdigit() and int(announced) not in _UNKNOWN_LENGTHS:
                found = line.split("should be", 1)[1].strip(" )")
                raise ValueError(
                    f"its header announces {announced} bytes of sound, it holds {found}: "
                    "it is truncated or damaged"
                )


def _check_last_page(source: Path) -> None:
    """Raise ValueError if an OGG's last page lacks the end mark (RFC 3533, section 6)."""
    with source.open("rb") as file:
        file.seek(max(0, source.stat().st_size - _LARGEST_PAGE_BYTES))
        tail = file.read()
    page = tail.rfind(b"OggS")
    if page < 0 or len(tail) < page + 6 or not tail[page + 5] & _LAST_PAGE:
        raise ValueError("its last page is missing: it is truncated or damaged")


_BLOCK_FRAMES = 2**22
_LARGEST_PAGE_BYTES = 65_307
_LAST_PAGE = 4

# Programs that write to a pipe do not know the length, and write one of these values.
_UNKNOWN_LENGTHS = {0, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFDB, 0xFFFFFFDB}
