"""Nothing is downloaded unless the user names something to download."""

import json
import os
import subprocess
import sys

from conftest import SMALL

SCRIPT = """
import json, sys, urllib.request

attempts = []

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        address = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[0]
        if not isinstance(address, (str, bytes)) or event != "socket.connect":  # else a socket of this machine
            attempts.append(f"{event} {address}")
            raise OSError("no network")

sys.addaudithook(watch)
import protonce
from protonce.evaluate.protocols import evaluate
photos, others, out, settings = json.loads(sys.argv[1])
run = protonce.train(photos, out, quiet=True, **settings)
evaluate(run, "knn", test=others, quiet=True)
evaluate(run, "semisup", test=others, quiet=True, shares=[0.5], draws=1, epochs=1)
run.embed(others)
during = list(attempts)
try:
    urllib.request.urlopen("http://localhost:9/")
except OSError:
    pass
print(json.dumps([during, attempts]))
"""


def test_training_and_evaluation_use_no_network(photos, others, tmp_path):
    """Not even to look whether there are weights of a timm backbone, with empty caches and no setting to be offline."""
    settings = {**SMALL, "epochs": 1, "warmup_epochs": 0, "workers": 1}
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {name: value for name, value in os.environ.items() if name not in offline}
    environment |= {"HF_HOME": str(tmp_path / "hub"), "TORCH_HOME": str(tmp_path / "torch")}
    arguments = json.dumps([str(photos), str(others), str(tmp_path / "run"), settings])
    command = [sys.executable, "-c", SCRIPT, arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    during, attempts = json.loads(done.stdout.splitlines()[-1])
    assert during == []
    assert attempts, "the watch does not see a connection"
    assert not (tmp_path / "hub").exists()
    assert not (tmp_path / "torch").exists()
