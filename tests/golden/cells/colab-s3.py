# freegpu agent cell for Google Colab, made by freegpu 0.0.0.
# It runs jobs from your own queue on this machine's cards, in the foreground, until the queue is empty.
# Whoever has this cell can answer for your sessions: share neither it nor the notebook.
import hashlib, json, pathlib, sys, tempfile

cell = json.loads(r'''
{
 "agent": "agent/freegpu-agent-abababababababab.pyz",
 "bandwidth": null,
 "beat_s": 2.0,
 "cell": "0123456789",
 "home": "h-golden",
 "idle_s": 60.0,
 "key": "3dd26f7dd5b4c72496e36a020fd2b497996ca37b7187191534f1043e6b64a8b3",
 "key_check": "8c42667a0d4f",
 "known": null,
 "limit_s": 43200,
 "margin_s": 20.0,
 "name": "colab",
 "notes": [
  "Colab's FAQ says of runtimes without a positive compute-unit balance that they may be ended at any time without warning, and names",
  "among the reasons: running distributed computing workers, remote control such as SSH shells, bypassing the notebook for a web UI.",
  "Whether that means your own jobs in a cell that you run yourself is for Google to say. This cell runs only your own jobs, in the",
  "foreground, does nothing to look busy, and gives the runtime back when it is done."
 ],
 "platform": "colab",
 "poll_s": 1.0,
 "region": "auto",
 "release": true,
 "scope": "",
 "secrets": [
  "AWS_ACCESS_KEY_ID",
  "AWS_SECRET_ACCESS_KEY"
 ],
 "sha256": "abababababababababababababababababababababababababababababababab",
 "store": "s3://box/free?endpoint=https://s3.example.org&region=auto",
 "title": "Google Colab",
 "url": "https://s3.example.org/box/free/agent/freegpu-agent-abababababababab.pyz"
}
''')

class Stop(Exception if "IPython" in sys.modules else SystemExit):
    def _render_traceback_(self):  # in a notebook the sentence alone
        return [str(self)]

import datetime, hmac, os, urllib.parse, urllib.request
from google.colab import userdata
secret = userdata.get  # Colab's Secrets, the key icon at the left
# one signed GET (AWS Signature Version 4)
place = urllib.parse.urlsplit(cell["url"])
moment = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
scope = f"{moment[:8]}/{cell['region']}/s3/aws4_request"
empty = hashlib.sha256(b"").hexdigest()
names = "host;x-amz-content-sha256;x-amz-date"
lines = f"host:{place.netloc}\nx-amz-content-sha256:{empty}\nx-amz-date:{moment}\n"
request = "\n".join(("GET", place.path, "", lines, names, empty))
key = ("AWS4" + str(secret("AWS_SECRET_ACCESS_KEY"))).encode()
for word in scope.split("/"):
    key = hmac.new(key, word.encode(), "sha256").digest()
proof = "\n".join(("AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode()).hexdigest()))
proof = hmac.new(key, proof.encode(), "sha256").hexdigest()
allow = f"AWS4-HMAC-SHA256 Credential={secret('AWS_ACCESS_KEY_ID')}/{scope}, SignedHeaders={names}, Signature={proof}"
headers = {"x-amz-date": moment, "x-amz-content-sha256": empty, "Authorization": allow}
try:
    data = urllib.request.urlopen(urllib.request.Request(cell["url"], headers=headers)).read()
except OSError as error:
    raise Stop(f"freegpu: the store did not hand out the agent: {error}; are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY right?")
if hashlib.sha256(data).hexdigest() != cell["sha256"]:
    raise Stop(f"freegpu: the agent that this cell was made for is not in {cell['store']} as seen from here: is the store there? Else make a new cell: freegpu cell colab")
agent = pathlib.Path(tempfile.mkdtemp(prefix="freegpu-"), "freegpu-agent.pyz")
agent.write_bytes(data)
for name in [name for name in sys.modules if name.split(".")[0] == "freegpu"]:
    del sys.modules[name]  # an agent of an earlier run of this cell
sys.path.insert(0, str(agent))
from freegpu.agent.notebook import run

ended = run(cell, agent)
