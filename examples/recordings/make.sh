#!/usr/bin/env bash
# Makes the recordings of this folder with espeak-ng and soundfile; run it in an environment that
# has batchmill[audio]. Speech synthesis has no speaker whose rights it could touch.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { # NAME VOICE SPEED TEXT
    espeak-ng -v "$2" -s "$3" -w "$work/$1.wav" "$4"
}
say harbour en-gb 140 "The harbour was quiet that morning. Two boats came in before sunrise, heavy with herring, and a third was still somewhere behind the headland."
say kettle en-us 150 "Fill the kettle, wait until it sings, and pour slowly. Tea is patient. People are not, and so most tea is drunk too early."
say bridge en-gb-scotland 135 "They built the bridge in four summers. In the first they argued, in the second they dug, in the third they built, and in the fourth they argued again."
say lantern en-us 145 "A lantern shows you the next three steps, and never the whole road. It is enough. Nobody has ever walked more than one step at a time."
say garten de 140 "Im Garten steht ein alter Apfelbaum. Im Frühling summt er von Bienen, im Herbst biegen sich die Äste, und im Winter wartet er."
say fenster de 135 "Das Fenster stand offen, und der Wind blätterte in den Büchern, als suche er eine ganz bestimmte Seite."
say uhrwerk de 145 "Eine Uhr hat viele Räder, und keines weiß, wie spät es ist. Zusammen wissen sie es genau."
say chemin fr-fr 140 "Le chemin monte doucement entre les pierres. En haut, on voit la mer, et personne ne parle pendant un long moment."
say marche fr-fr 150 "Au marché, on goûte avant d'acheter. Les pommes sont petites cette année, mais elles ont le goût de l'été."
say puerto es 140 "El puerto despierta antes que la ciudad. Primero las gaviotas, después los motores, y al final la voz de los pescadores."
say tren es 150 "El tren salió con diez minutos de retraso, cruzó el valle entero y llegó a tiempo. Nadie supo explicarlo."
say vento it 140 "Il vento arriva dal mare, gira intorno al campanile e se ne va senza salutare, come un vecchio amico."

python - "$work" <<'PYTHON'
import sys
from pathlib import Path

import soundfile

work = Path(sys.argv[1])
formats = {
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "wav": ("WAV", "PCM_16"),
}
suffixes = {
    "harbour": "flac", "kettle": "mp3", "bridge": "ogg", "lantern": "flac", "garten": "flac",
    "fenster": "wav", "uhrwerk": "mp3", "chemin": "ogg", "marche": "flac", "puerto": "mp3",
    "tren": "ogg", "vento": "wav",
}
for name, suffix in suffixes.items():
    samples, rate = soundfile.read(work / f"{name}.wav", dtype="int16")
    kind, subtype = formats[suffix]
    soundfile.write(f"{name}.{suffix}", samples, rate, format=kind, subtype=subtype)
PYTHON
