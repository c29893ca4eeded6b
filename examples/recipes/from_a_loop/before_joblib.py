from glob import glob

import pandas as pd
import soundfile
from joblib import Parallel, delayed


def measure(path):
    samples, rate = soundfile.read(path, always_2d=True)
    return {"seconds": len(samples) / rate, "peak": abs(samples).max()}


paths = sorted(glob("examples/recordings/*.flac"))
rows = Parallel(n_jobs=-1)(delayed(measure)(path) for path in paths)
pd.DataFrame(rows, index=paths).to_csv("before_joblib.csv", index_label="input")
