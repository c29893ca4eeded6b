import ctypes

import soundfile


def measure(source):
    start = source.read_bytes()[:5]
    if start == b"crash":
        ctypes.string_at(0)  # a segmentation fault
    while start == b"hang!":
        pass
    samples, rate = soundfile.read(source)
    return {"seconds": len(samples) / rate, "peak": samples.max()}
