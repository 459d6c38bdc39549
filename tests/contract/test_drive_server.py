"""The pretended Drive is one that Google's own client accepts, and its faults are what they say."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.testing.drive_server import Drive, DriveServer

FOLDER = "application/vnd.google-apps.folder"
BIG = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture(autouse=True)
def _without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """httplib2 speaks to a proxy also where NO_PROXY names the host; the socket fence stays."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name)
        monkeypatch.delenv(name.upper())


@pytest.fixture
def server() -> Iterator[DriveServer]:
    with DriveServer() as made:
        yield made


_open: list[Any] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


def google(server: DriveServer, *, client: str = "app", scope: str = "drive") -> Any:
    """The unmodified client of Google, with the discovery document of its wheel pointed at our server."""
    import googleapiclient
    import googleapiclient.discovery
    import googleapiclient.http
    from google.oauth2.credentials import Credentials
    from google_auth_httplib2 import AuthorizedHttp  # type: ignore[import-untyped]

    where = Path(googleapiclient.__file__).parent / "discovery_cache/documents/drive.v3.json"
    document = json.loads(where.read_text(encoding="utf-8"))
    document["rootUrl"] = f"{server.url}/"
    document["baseUrl"] = f"{server.url}/drive/v3/"
    grant = json.loads(server.oauth.grant(client, scope))
    credentials = Credentials(  # type: ignore[no-untyped-call]
        None,
        refresh_token=grant["refresh_token"],
        token_uri=grant["token_uri"],
        client_id=client,
        client_secret=grant["client_secret"],
    )
    plain = googleapiclient.http.build_http()
    # after a cut httplib2 sends the rest of a stream as if it were the whole, and waits for an answer
    plain.timeout = 1
    http = AuthorizedHttp(credentials, http=plain)
    _open.append(http)
    return googleapiclient.discovery.build_from_document(document, http=http)


def media(data: bytes, *, resumable: bool = False) -> Any:
    from googleapiclient.http import MediaIoBaseUpload

    return MediaIoBaseUpload(
        io.BytesIO(data), "application/octet-stream", chunksize=256 << 10, resumable=resumable
    )


def test_google_s_client_makes_finds_reads_changes_and_deletes(server: DriveServer) -> None:
    """A whole life of a file: folder, multipart create, listing, download, update, trash, delete."""
    from googleapiclient.errors import HttpError
    from googleapiclient.http import MediaIoBaseDownload

    drive = google(server)
    files = drive.files()
    folder = files.create(body={"name": "résultats", "mimeType": FOLDER}).execute()
    made = files.create(
        body={"name": "a.bin", "parents": [folder["id"]], "properties": {"key": "o'x"}},
        media_body=media(b"one"),
        fields="id,size,sha256Checksum,md5Checksum,parents",
    ).execute()
    assert made["size"] == "3"
    assert made["sha256Checksum"] == hashlib.sha256(b"one").hexdigest()
    assert made["md5Checksum"] == hashlib.md5(b"one").hexdigest()
    assert made["parents"] == [folder["id"]]
    for query in (
        f"'{folder['id']}' in parents and trashed = false",
        "name = 'a.bin'",
        "name contains 'A.b' and not mimeType = 'x'",
        r"properties has { key='key' and value='o\'x' }",
        "(name = 'none' or name='a.bin') and 'me' in owners and createdTime > '2012-06-04T12:00:00'",
    ):
        assert [f["id"] for f in files.list(q=query).execute()["files"]] == [made["id"]], query
    assert [f["name"] for f in files.list(q="'root' in parents").execute()["files"]] == [
        "résultats"
    ]
    files.update(fileId=made["id"], media_body=media(b"two and more"), body={"name": "b"}).execute()
    into = io.BytesIO()
    loader = MediaIoBaseDownload(into, files.get_media(fileId=made["id"]), chunksize=5)
    while not loader.next_chunk()[1]:
        pass
    assert into.getvalue() == b"two and more"
    files.update(fileId=folder["id"], body={"trashed": True}).execute()
    buried = files.get(fileId=made["id"], fields="trashed,explicitlyTrashed").execute()
    assert buried == {"trashed": True, "explicitlyTrashed": False}
    files.delete(fileId=folder["id"]).execute()
    with pytest.raises(HttpError, match="File not found") as found:
        files.get(fileId=made["id"]).execute()
    assert found.value.resp.status == 404


def test_google_s_client_uploads_in_chunks_and_goes_on_after_a_cut(server: DriveServer) -> None:
    """308 and Range as it understands them; after a cut connection it asks where to go on; one file comes of it."""
    drive = google(server)
    request = drive.files().create(
        body={"name": "big"}, media_body=media(BIG, resumable=True), fields="id,sha256Checksum"
    )
    server.cut("upload.chunk", 100_000)
    done, cuts = None, 0
    while done is None:
        try:
            _, done = request.next_chunk()
        except OSError:
            cuts += 1
    assert cuts == 1
    assert done["sha256Checksum"] == hashlib.sha256(BIG).hexdigest()
    assert len(server.named("big")) == 1
    assert server.count()["upload.ask"] == 1


def test_pages_orders_and_parts_of_answers(server: DriveServer) -> None:
    """list_next walks all pages; orderBy and fields do what they say; twins of a name are two files."""
    files = google(server).files()
    for name in ("b", "a", "c", "a"):
        files.create(body={"name": name}).execute()
    seen: list[dict[str, str]] = []
    request = files.list(pageSize=3, orderBy="name", fields="nextPageToken,files(name)")
    while request is not None:
        answer = request.execute()
        seen += answer["files"]
        request = files.list_next(request, answer)
    assert seen == [{"name": name} for name in "aabc"]
    assert server.count()["files.list"] == 2


def test_an_id_is_good_for_one_file(server: DriveServer) -> None:
    """generateIds, then a create; the second create with it is refused with 409, by either kind of upload."""
    from googleapiclient.errors import HttpError, ResumableUploadError

    files = google(server).files()
    (one,) = files.generateIds(count=1).execute()["ids"]
    assert files.create(body={"id": one, "name": "x"}).execute()["id"] == one
    for resumable, failure in ((False, HttpError), (True, ResumableUploadError)):
        request = files.create(
            body={"id": one, "name": "x"}, media_body=media(BIG, resumable=resumable)
        )
        with pytest.raises(failure) as found:
            request.next_chunk() if resumable else request.execute()
        assert found.value.resp.status == 409
    assert len(server.named("x")) == 1


def test_the_changes_feed_tells_what_was_made_changed_and_deleted(server: DriveServer) -> None:
    """From a start token on, each file once with its last state; then nothing more."""
    drive = google(server)
    token = drive.changes().getStartPageToken().execute()["startPageToken"]
    kept = drive.files().create(body={"name": "kept"}).execute()["id"]
    drive.files().update(fileId=kept, body={"name": "renamed"}).execute()
    gone = drive.files().create(body={"name": "gone"}).execute()["id"]
    drive.files().delete(fileId=gone).execute()
    answer = (
        drive.changes()
        .list(pageToken=token, fields="newStartPageToken,changes(fileId,removed,file(name))")
        .execute()
    )
    assert [(c["fileId"], c["removed"], c.get("file")) for c in answer["changes"]] == [
        (kept, False, {"name": "renamed"}),
        (gone, True, None),
    ]
    assert drive.changes().list(pageToken=answer["newStartPageToken"]).execute()["changes"] == []


def test_drive_file_sees_its_own_client_s_files_only(server: DriveServer) -> None:
    """Another client's file is not listed and not there by id; the full scope sees it, but no private properties."""
    from googleapiclient.errors import HttpError

    mine = google(server, scope="drive.file")
    theirs = google(server, client="colab", scope="drive.file")
    full = google(server, client="other")
    body = {"name": "x", "appProperties": {"a": "1"}, "properties": {"p": "1"}}
    file = mine.files().create(body=body).execute()["id"]
    assert theirs.files().list().execute()["files"] == []
    with pytest.raises(HttpError, match="File not found"):
        theirs.files().get(fileId=file).execute()
    wanted = "properties,appProperties"
    assert full.files().get(fileId=file, fields=wanted).execute() == {"properties": {"p": "1"}}
    own = mine.files().get(fileId=file, fields=wanted).execute()
    assert own == {"properties": {"p": "1"}, "appProperties": {"a": "1"}}
    assert len(full.files().list(q="properties has {key='p' and value='1'}").execute()["files"])
    assert not full.files().list(q="appProperties has {key='a' and value='1'}").execute()["files"]


def test_tokens_age_and_die(server: DriveServer) -> None:
    """An old access token is renewed by the client; a revoked refresh token is invalid_grant."""
    from google.auth.exceptions import RefreshError

    drive = google(server)
    drive.files().list().execute()
    server.oauth.expire_all()
    drive.files().list().execute()
    assert server.count()["token"] == 2
    server.oauth.revoke_all()
    with pytest.raises(RefreshError, match="invalid_grant"):
        drive.files().list().execute()


def test_listings_and_the_feed_are_late_and_ids_are_not(server: DriveServer) -> None:
    """With lag a new file is in no listing, a deleted one still is; by id everything is as it is."""
    drive = google(server)
    old = drive.files().create(body={"name": "old"}).execute()["id"]
    assert len(drive.files().list().execute()["files"]) == 1
    token = drive.changes().getStartPageToken().execute()["startPageToken"]
    server.listing_lag_s = server.changes_lag_s = float("inf")
    new = drive.files().create(body={"name": "new"}).execute()["id"]
    drive.files().delete(fileId=old).execute()
    assert [f["id"] for f in drive.files().list().execute()["files"]] == [old]
    assert drive.files().get(fileId=new).execute()["name"] == "new"
    assert drive.changes().list(pageToken=token).execute()["changes"] == []
    server.listing_lag_s = server.changes_lag_s = 0
    assert [f["id"] for f in drive.files().list().execute()["files"]] == [new]
    assert len(drive.changes().list(pageToken=token).execute()["changes"]) == 2


def test_quota_counts_the_trash_and_refuses_what_is_too_much(server: DriveServer) -> None:
    """storageQuotaExceeded, and about.get tells both figures."""
    from googleapiclient.errors import HttpError

    server.drive.quota = 1000
    drive = google(server)
    file = drive.files().create(body={"name": "x"}, media_body=media(b"x" * 900)).execute()["id"]
    drive.files().update(fileId=file, body={"trashed": True}).execute()
    with pytest.raises(HttpError, match="storage quota"):
        drive.files().create(body={"name": "y"}, media_body=media(b"y" * 200)).execute()
    about = drive.about().get(fields="storageQuota(limit,usage),user(emailAddress)").execute()
    assert about["storageQuota"] == {"limit": "1000", "usage": "900"}
    drive.files().delete(fileId=file).execute()
    drive.files().create(body={"name": "y"}, media_body=media(b"y" * 200)).execute()


def test_faults_happen_as_often_as_they_are_set(server: DriveServer) -> None:
    """Google's client repeats rate limits and server errors by itself, and finds what was accepted all the same."""
    from googleapiclient.errors import HttpError

    files = google(server).files()
    request = files.create(body={"name": "x"})
    request._sleep = lambda seconds: None
    server.fail("files.create", 403, "rateLimitExceeded", times=2)
    request.execute(num_retries=2)
    assert len(server.named("x")) == 1
    server.fail("files.create", 503, accepted=True)
    with pytest.raises(HttpError) as found:
        files.create(body={"name": "y"}).execute()
    assert found.value.resp.status == 503
    assert len(server.named("y")) == 1


def test_what_was_kept_in_a_folder_is_there_after_a_restart(tmp_path: Path) -> None:
    """Files, contents, used ids and the feed."""
    with DriveServer(Drive(tmp_path)) as first:
        drive = google(first)
        made = drive.files().create(body={"name": "x"}, media_body=media(b"kept")).execute()["id"]
    with DriveServer(Drive(tmp_path)) as second:
        drive = google(second)
        assert drive.files().get_media(fileId=made).execute() == b"kept"
        assert [f["name"] for f in drive.files().list().execute()["files"]] == ["x"]
        assert drive.changes().getStartPageToken().execute()["startPageToken"] == "2"
