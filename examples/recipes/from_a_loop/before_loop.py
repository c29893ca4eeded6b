from glob import glob
from pathlib import Path

import pandas as pd
import soundfile

Path("mono").mkdir(exist_ok=True)
rows = []
for path in sorted(glob("examples/recordings/*.flac")):
    target = Path("mono") / f"{Path(path).stem}.wav"
    if target.exists():
        continue  # An earlier run has done it.
    try:
        samples, rate = soundfile.read(path, always_2d=True)
    except soundfile.LibsndfileError as error:
        print("skipped", path, error)
        continue
    sound = samples.mean(axis=1)
    soundfile.write(target, sound, rate)
    rows.append({"input": path, "seconds": len(sound) / rate, "peak": abs(sound).max()})
pd.DataFrame(rows).to_csv("before_loop.csv", index=False)
