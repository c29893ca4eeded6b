"""Make unusual recordings that are valid, and damaged recordings."""

import struct

import numpy as np
import soundfile

RATE = 8000


def sound(seconds, channels=1, rate=RATE):
    noise = np.random.default_rng(0).integers(-9999, 9999, (round(seconds * rate), channels))
    return noise.astype(np.int16)


def wav(data, *, channels=1, rate=RATE, bits=16, announced=None, kind=1):
    """Return the bytes of a WAV file whose header may contradict its data."""
    block = max(1, channels * bits // 8)
    header = struct.pack(
        "<HHIIHH", kind, channels, rate, (rate * block) & 0xFFFFFFFF, block & 0xFFFF, bits
    )
    size = len(data) if announced is None else announced
    body = b"WAVEfmt " + struct.pack("<I", 16) + header + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", len(body) & 0xFFFFFFFF) + body


def encoded(path, samples, rate=RATE, **options):
    soundfile.write(path, samples, rate, **options)
    return path.read_bytes()


def with_odd_sample(path, value):
    samples = np.zeros(2 * RATE, np.float32)
    samples[RATE + 100] = value
    return encoded(path, samples, subtype="FLOAT")


def flac_of_length(path, frames):
    """Return a FLAC whose header has this number of frames.

    It is in the last 36 bits of STREAMINFO before the checksum.
    """
    data = bytearray(encoded(path, sound(2)))
    data[21] = data[21] & 0xF0 | frames >> 32
    data[22:26] = struct.pack(">I", frames & 0xFFFFFFFF)
    return bytes(data)


def mp3_with(path, garbage, share):
    """Return an MP3 with foreign bytes inserted at this share of its length."""
    data = encoded(path, sound(4))
    place = round(len(data) * share)
    return data[:place] + garbage + data[place:]


PLAIN = sound(2).tobytes()
GARBAGE = np.random.default_rng(2).bytes(3000)

# Valid but unusual recordings: a file name, and a function that makes the bytes from a path.
UNUSUAL = {
    "one-sample.wav": lambda path: wav(b"\1\0"),
    "8-bit.wav": lambda path: encoded(path, sound(2), subtype="PCM_U8"),
    "24-bit.flac": lambda path: encoded(path, sound(2), subtype="PCM_24"),
    "96-khz.wav": lambda path: encoded(path, sound(1, rate=96_000), rate=96_000),
    "six-channels.wav": lambda path: encoded(path, sound(2, channels=6)),
    "from-a-pipe.wav": lambda path: wav(PLAIN, announced=0xFFFFFFFF),
    "named-otherwise.mp3": lambda path: wav(PLAIN),
    "garbage-before.mp3": lambda path: mp3_with(path, GARBAGE, 0),
    "garbage-after.mp3": lambda path: mp3_with(path, GARBAGE, 1),
    "silence.wav": lambda path: wav(bytes(32_000)),
}

# Damaged recordings: a function that makes the bytes, and a part of the error message.
DAMAGED = {
    "empty.wav": (lambda path: b"", "Format not recognised"),
    "text.wav": (lambda path: b"not a sound, but a sentence\n" * 99, "Format not recognised"),
    "header-only.wav": (lambda path: wav(b""), "0 frames"),
    "half-header.wav": (lambda path: wav(PLAIN)[:30], ""),
    "truncated.wav": (lambda path: wav(PLAIN[:9999], announced=len(PLAIN)), "truncated"),
    "truncated.flac": (lambda path: encoded(path, sound(4))[:20_000], ""),
    "huge-size.wav": (lambda path: wav(PLAIN, announced=0x7FFFFFF0), "truncated"),
    "no-channels.wav": (lambda path: wav(PLAIN, channels=0), ""),
    "no-rate.wav": (lambda path: wav(PLAIN, rate=0), ""),
    "fast.wav": (lambda path: wav(PLAIN, rate=4_000_000_000), ""),
    "many-channels.wav": (lambda path: wav(PLAIN, channels=60_000), ""),
    "nan.wav": (lambda path: with_odd_sample(path, np.nan), "sample 8100, at 1.012 s"),
    "infinite.wav": (lambda path: with_odd_sample(path, np.inf), "not a number"),
    "huge-length.flac": (lambda path: flac_of_length(path, 2**36 - 1), "ends after 16000 of"),
    "long-length.flac": (lambda path: flac_of_length(path, 5 * RATE), "ends after 16000 of"),
    "garbage-within.mp3": (lambda path: mp3_with(path, GARBAGE, 0.5), ""),
    "noise.mp3": (lambda path: np.random.default_rng(1).bytes(20_000), ""),
}
