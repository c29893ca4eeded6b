import soundfile


def measure(source):
    """Return the length and the loudest sample of a recording."""
    samples, rate = soundfile.read(source)
    return {"seconds": len(samples) / rate, "peak": samples.max()}
