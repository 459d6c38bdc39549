"""Lightning's own client as a witness: it understands our loopback server, and our requests are its requests.

It runs in a process of its own: its address is frozen when it is imported, and it prompts, writes and opens browsers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import PlatformState
from freegpu.testing.lightning_server import LightningServer
from freegpu.testing.platform_server import Heard
from freegpu.testing.suites import Stage
from freegpu.testing.suites.stage import until
from tests.contract.lightning import server, stage

__all__ = ["server", "stage"]

pytest.importorskip("requests", reason="comes with lightning-sdk, which is not installed")

CANARY = "canary-in-the-environment-of-a-job"
_LOOKS = """
import json, os, sys
from lightning_sdk.lightning_cloud.rest_client import LightningClient
c = LightningClient(retry=False)
p = "prj-1"
m = c.projects_service_list_memberships().memberships[0]
a = c.cluster_service_list_default_cluster_accelerators(project_id=p, cloud_provider="AWS").accelerator
k = c.cluster_service_list_project_clusters(project_id=p).clusters[0]
j = c.jobs_service_list_jobs(project_id=p, limit="100", standalone=True).jobs[0]
g = c.jobs_service_get_job(project_id=p, id=j.id)
s = c.cloud_space_service_list_cloud_spaces(project_id=p, name="freegpu-s-1").cloudspaces[0]
logs = c.jobs_service_get_logs(project_id=p, job_ids=[j.id])
print(json.dumps({
    "teamspace": m.name, "user": c.auth_service_get_user().username,
    "balances": [m.balance, c.billing_service_get_project_balance(p).balance,
                 c.billing_service_get_user_balance().balance, c.billing_service_get_account_balance().balance],
    "machines": [[x.family, x.resources.gpu, x.cost, x.spot_price, x.out_of_capacity, x.provider] for x in a],
    "cluster": [k.id, k.spec.driver, k.spec.cluster_type],
    "job": [j.name, j.state, g.spec.cloudspace_id == s.id, g.spec.spot, g.total_cost >= 0],
    "studio": s.name, "logs": [e.message for e in logs.entries],
}))
"""
_STARTS = """
import json, sys
from lightning_sdk.api.studio_api import StudioApi
from lightning_sdk.api.job_api import JobApiV2
given = json.load(sys.stdin)
s, j = StudioApi(), JobApiV2()
made = s.create_studio(given["name"], "prj-1", cloud_account="lightning-public-prod")
s.upload_file(made.id, "prj-1", "", given["file"], "freegpu/s-1/agent.pyz", False)
job = j.submit_job(name=given["name"], command=given["command"], cloud_account="lightning-public-prod",
    teamspace_id="prj-1", studio_id=made.id, image=None, machine="lit-t4-1", interruptible=False, env=None,
    image_credentials=None, cloud_account_auth=False, entrypoint=None, path_mappings=None, max_run_attempts=1,
    reuse_snapshot=False)
j._client.jobs_service_update_job(body={"state": j.v2_job_state_stop}, project_id="prj-1", id=job.id)
j.delete_job(job.id, "prj-1", made.id)
s._client.cloud_space_service_delete_cloud_space(project_id="prj-1", id=made.id)
print("done")
"""
_TELLS = """
import sys
from lightning_sdk import Job
try:
    Job.run(name="x", machine="lit-l4-1", command="true", image="i", teamspace="ada/lab", env={"TOKEN": sys.stdin.read()})
except Exception as error:
    print("failed", type(error).__name__)
"""


def ask(server: LightningServer, folder: Path, program: str, given: str = "") -> str:
    """Run this with the real client against the server; what it printed last."""
    home = folder / "home-of-the-sdk"
    home.mkdir(exist_ok=True)
    around = {
        **{name: os.environ[name] for name in os.environ if name.lower().endswith("_proxy")},
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "BROWSER": "true",
        "LIGHTNING_CLOUD_URL": server.url,
        "LIGHTNING_DISABLE_VERSION_CHECK": "1",
        "LIGHTNING_USER_ID": "usr-1",
        "LIGHTNING_API_KEY": server.key,
        "LIGHTNING_CREDENTIAL_PATH": str(home / "credentials.json"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=given,
        env=around,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def shape(heard: Heard) -> tuple[str, str, Any]:
    """Method, path and body with the ids that differ from run to run blotted out."""
    path = "/".join(
        "ID" if part.startswith(("cs-", "job-")) or len(part) == 16 else part
        for part in heard.path.split("/")
    )
    body: Any = None if heard.operation == "put_blob" else heard.json
    if heard.operation == "create_job":
        body["spec"]["cloudspaceId"] = "ID"
    return heard.method, path, body


def test_the_real_client_understands_the_loopback_server(
    stage: Stage, server: LightningServer, tmp_path: Path
) -> None:
    """Each answer that our adapter reads is parsed by the generated models, and means the same there."""
    ref = stage.start("s-1")
    until(lambda: "stand-in" in stage.adapter.logs(ref).text)
    told = json.loads(ask(server, tmp_path, _LOOKS))
    assert (told["teamspace"], told["user"]) == ("lab", "ada")
    assert all(0 < balance <= 5 for balance in told["balances"])
    assert ["T4", 1, 0.55, 0.574, False, "AWS"] in told["machines"]
    assert told["cluster"] == ["lightning-public-prod", "AWS", "CLUSTER_TYPE_GLOBAL"]
    assert told["job"] == ["freegpu-s-1", "running", True, False, True]
    assert told["studio"] == "freegpu-s-1"
    assert "the stand-in is up" in told["logs"]


def test_our_requests_are_those_of_the_real_client(
    stage: Stage, server: LightningServer, tmp_path: Path
) -> None:
    """Creating a Studio, filling it, starting a job, stopping and deleting: method, path and body, on the server's record."""
    changes = ("POST", "PUT", "DELETE")
    request = stage.adapter.render(stage.launch("s-1"))
    ref = stage.adapter.start(request)
    stage.adapter.stop(ref)
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    stage.adapter.tidy(ref)  # type: ignore[attr-defined]
    ours = [h for h in server.requests if h.method in changes]
    server.requests.clear()
    given = {
        "name": "freegpu-s-1",
        "command": request.payload["command"],
        "file": request.payload["agent"],
    }
    assert ask(server, tmp_path, _STARTS, json.dumps(given)) == "done"
    theirs = [shape(h) for h in server.requests if h.method in changes]
    seen = [shape(h) for h in ours]
    # we upload one file more, the profile: asked for, sent, completed
    more = next(
        i for i, s in enumerate(seen) if s[1].endswith("/blobs") and "launch.json" in str(s)
    )
    assert [s[0] for s in seen[more : more + 3]] == ["POST", "PUT", "POST"]
    del seen[more : more + 3]
    assert seen == theirs


def test_the_real_client_reports_what_it_was_given_and_we_report_nothing(
    stage: Stage, server: LightningServer, tmp_path: Path
) -> None:
    """Why the adapter does without it: a call that fails sends the values of `env` to its command history."""
    assert ask(server, tmp_path, _TELLS, CANARY).startswith("failed")
    told = [h for h in server.requests if h.operation == "command_history"]
    assert any(CANARY.encode() in h.body for h in told)
    server.requests.clear()
    stage.adapter.entrust(lambda: {"TOKEN": CANARY})  # type: ignore[attr-defined]
    request = stage.adapter.render(stage.launch("s-1"))
    server.set_faults(fail={"value": 403, "only": ["create_job"]})
    with pytest.raises(Exception, match="403"):
        stage.adapter.start(request)
    assert not [h for h in server.requests if h.operation in ("command_history", "")]
    assert {h.operation for h in server.requests if CANARY.encode() in h.body} == {"put_blob"}
