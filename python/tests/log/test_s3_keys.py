"""S3's keys: from the sources that Hadoop names, renewed while a query runs. The servers are on loopback."""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import pytest

from spark_cec.adapters import filesystems, s3_keys
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.adapters.hadoop_settings import use_settings
from spark_cec.adapters.object_storage import KeySource, ObjectStorage
from spark_cec.adapters.retries import refusal_of
from spark_cec.errors import KeysRefused, LogLocationError, mend_of
from spark_cec.log.storage import Storage
from spark_cec_lab.storage.emulated_s3 import run_emulated_s3
from spark_cec_lab.storage.proxy import PASS, Decide, Order, Request, StorageProxy
from tests.log.support import ObjectStore

pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]'")
boto3 = pytest.importorskip("boto3")
s3fs = pytest.importorskip("s3fs")
sts_models = pytest.importorskip("moto.sts.models")

PREFIX = "spark.sql.streaming.stateStore.cec."
PROVIDER = "fs.s3a.aws.credentials.provider"
ASSUMED = "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"
SDK2 = "software.amazon.awssdk.auth.credentials"
ARN = "arn:aws:iam::123456789012:role/shop"
GIVEN = {"fs.s3a.access.key": "given", "fs.s3a.secret.key": "the-secret"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with run_emulated_s3() as place:
        yield f"http://{place}"


@pytest.fixture(autouse=True)
def no_keys_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The tests' own environment has no keys, and each test has file systems of its own."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr(fsspec.config, "conf", {})
    s3_keys.forget_sessions()
    filesystems.forget_good_keys()
    s3fs.S3FileSystem.clear_instance_cache()
    yield
    use_settings({})


@contextmanager
def serve(endpoint: str, settings: dict[str, str], decide: Decide = lambda _: PASS) -> Iterator[Any]:
    """A storage behind a proxy, in a bucket of its own, with Hadoop's settings."""
    bucket = f"b-{uuid.uuid4().hex[:12]}"
    boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="k", aws_secret_access_key="s", region_name="us-east-1"
    ).create_bucket(Bucket=bucket)
    with StorageProxy(endpoint.removeprefix("http://"), decide) as proxy:
        places = {"fs.s3a.endpoint": proxy.url, "fs.s3a.endpoint.region": "us-east-1"}
        use_settings({**places, PREFIX + "storage.retry": "20s", **settings})
        yield open_storage(f"s3a://{bucket}/log"), proxy


def role_settings(endpoint: str, **more: str) -> dict[str, str]:
    settings = {"arn": ARN, "sts.endpoint": endpoint, "sts.endpoint.region": "us-east-1", **more}
    return {**GIVEN, PROVIDER: ASSUMED, **{f"fs.s3a.assumed.role.{name}": value for name, value in settings.items()}}


def lent_roles() -> dict[str, Any]:
    """The roles that STS has lent, by the names of their keys."""
    found = sts_models.sts_backends["123456789012"]["aws"].assumed_roles
    return {each.access_key_id: each for each in found}


def signers(proxy: StorageProxy) -> list[str]:
    return [each.request.key_id for each in proxy.seen()]


def test_a_role_is_assumed_and_its_keys_are_used(endpoint: str) -> None:
    more = {"session.name": "of-spark", "external.id": "shop-7", "policy": '{"Version": "2012-10-17"}'}
    with serve(endpoint, role_settings(endpoint, **{"session.duration": "20m", **more})) as (storage, proxy):
        storage.create("x", b"1")
        assert storage.read("x") == b"1"
        (key,) = set(signers(proxy))
        role = lent_roles()[key]
        assert (role.role_arn, role.session_name, role.external_id) == (ARN, "of-spark", "shop-7")
        assert role.policy == more["policy"]
        rest = role.expiration.replace(tzinfo=timezone.utc) - datetime.now(timezone.utc)
        assert timedelta(minutes=18) < rest <= timedelta(minutes=20)
        assert len(lent_roles()) == 1, "one session serves all requests"


def test_keys_of_a_role_are_renewed_before_they_end(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lend = sts_models.AssumedRole.__init__

    def lend_shortly(self: Any, *given: Any, **named: Any) -> None:
        lend(self, *given, **named)
        self.expiration -= timedelta(seconds=900 - 6)

    monkeypatch.setattr(sts_models.AssumedRole, "__init__", lend_shortly)

    def refuse_old_keys(request: Request) -> Order:
        """The store's clock is a second ahead."""
        now = datetime.now(timezone.utc) + timedelta(seconds=1)
        ends = lent_roles()[request.key_id].expiration.replace(tzinfo=timezone.utc)
        return PASS if ends > now else Order(status=400, code="ExpiredToken")

    settings = role_settings(endpoint, **{"session.duration": "15m"})
    with serve(endpoint, settings, refuse_old_keys) as (storage, proxy):
        until, number = time.monotonic() + 10, 0
        while time.monotonic() < until:
            storage.create(f"d/{number}", b"1")
            number += 1
            time.sleep(0.1)
        assert len(storage.list("d")) == number
        assert [each.order.code for each in proxy.seen() if each.order.code] == [], "keys were renewed in time"
        assert 2 <= len(set(signers(proxy))) < number, "a renewal for each session, not for each request"


def test_a_role_that_sts_refuses_is_named(endpoint: str) -> None:
    def refuse(_: Request) -> Order:
        return Order(status=403, code="AccessDenied")

    with (
        StorageProxy(endpoint.removeprefix("http://"), refuse) as sts,
        serve(endpoint, role_settings(sts.url)) as (storage, _),
        pytest.raises(KeysRefused, match=r"STS lends no keys \(AssumeRole: .*see to the role") as failed,
    ):
        storage.create("x", b"1")
    assert "the-secret" not in str(failed.value) and "\n" not in str(failed.value)


def write_profile(file: Path, key: str) -> None:
    file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=s\naws_session_token=t\n")


def refusing(file: Path, times: int, word: str) -> tuple[Decide, list[str]]:
    """Takes new keys alone. They come into the file when others were refused so many times; the list has those."""
    refused = list[str]()

    def decide(request: Request) -> Order:
        if request.key_id == "new":
            return PASS
        refused.append(request.key_id)
        if len(refused) == times:
            write_profile(file, "new")
        return Order(status=400, code=word)

    return decide, refused


def only(*keys: str, word: str = "ExpiredToken") -> Decide:
    """Takes these keys alone."""
    return lambda request: PASS if request.key_id in keys else Order(status=400, code=word)


@pytest.mark.parametrize("provider", [None, f"{SDK2}.ProfileCredentialsProvider"], ids=["default", "profile"])
@pytest.mark.parametrize("word", ["ExpiredToken", "RequestExpired", "InvalidAccessKeyId"])
def test_keys_of_a_file_that_is_written_anew_are_read_again(
    provider: str | None, word: str, endpoint: str, tmp_path: Path
) -> None:
    """The file comes when the keys that it had were refused twice."""
    file = tmp_path / "credentials"
    write_profile(file, "old")
    decide, refused = refusing(file, 2, word)
    with serve(endpoint, {} if provider is None else {PROVIDER: provider}) as (storage, proxy):
        storage.create("d/1", b"1")
        proxy.decide = decide
        storage.create("d/2", b"2")
        storage.create("d/3", b"3")
        assert [each.name for each in storage.list("d")] == ["1", "2", "3"]
        assert signers(proxy)[-3:] == ["new"] * 3 and len(refused) >= 2


def test_other_storages_of_the_query_take_the_keys_that_one_has_read(endpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    write_profile(file, "old")
    with serve(endpoint, {}) as (storage, proxy):
        others = [open_storage(f"{storage.url}/{number}") for number in range(3)]
        for each in (storage, *others):
            each.create("1", b"1")
        proxy.decide = only("new")
        write_profile(file, "new")
        for each in (storage, *others):
            each.create("2", b"2")
        assert len({id(each._filesystem) for each in (storage, *others)}) == 1
        assert signers(proxy)[4:] == ["old", "new"] * 4


def test_a_storage_that_is_opened_after_its_keys_have_ended_waits_for_new_ones(endpoint: str, tmp_path: Path) -> None:
    """Each call of a batch opens a storage of its own. The file comes when its keys were refused three times."""
    file = tmp_path / "credentials"
    write_profile(file, "old")
    decide, _ = refusing(file, 3, "InvalidAccessKeyId")
    with serve(endpoint, {}) as (storage, proxy):
        storage.create("1", b"1")
        proxy.decide = decide
        open_storage(f"{storage.url}/of/a/batch").create("2", b"2")
        assert signers(proxy) == ["old"] * 4 + ["new"]


def test_keys_that_the_shim_sends_anew_are_taken(endpoint: str) -> None:
    """Hadoop's credential files: the shim reads them again, and sends what has changed."""
    files = {"hadoop.security.credential.provider.path": "jceks://file/keys.jceks"}
    with serve(endpoint, {**GIVEN, **files}) as (storage, proxy):
        storage.create("1", b"1")
        proxy.decide = only("later")
        places = {"fs.s3a.endpoint": proxy.url, "fs.s3a.endpoint.region": "us-east-1", **files}
        later = threading.Timer(1.0, lambda: use_settings({**places, **GIVEN, "fs.s3a.access.key": "later"}))
        later.start()
        storage.create("2", b"2")
        later.join()
        assert signers(proxy)[-1] == "later" and signers(proxy).count("given") > 2


def test_keys_of_the_settings_that_have_expired_are_named_at_once(endpoint: str) -> None:
    with serve(endpoint, {**GIVEN, "fs.s3a.session.token": "the-token"}) as (storage, proxy):
        storage.create("1", b"1")
        proxy.decide = only()
        began = time.monotonic()
        with pytest.raises(KeysRefused) as failed:
            storage.create("2", b"2")
        assert time.monotonic() - began < 10, "nobody can renew them"
        assert len(proxy.seen()) == 3, "they are read again once"
        mend = (
            "the store takes the keys of fs.s3a.access.key no more (ExpiredToken), and nothing renews them: give new "
            "ones, or a source that renews them, and start the query again"
        )
        assert mend_of(failed.value) == mend and failed.value.filename == f"{storage.url}/2"
        with pytest.raises(LogLocationError, match="cannot be written: the store takes the keys of") as refused:
            storage.probe_writable()
        for said in (str(failed.value), str(refused.value)):
            assert "the-secret" not in said and "the-token" not in said and "\n" not in said


def test_keys_that_are_not_renewed_in_time_are_named(endpoint: str, tmp_path: Path) -> None:
    write_profile(tmp_path / "credentials", "old")
    with serve(endpoint, {PREFIX + "storage.retry": "1s"}) as (storage, proxy):
        storage.create("1", b"1")
        proxy.decide = only()
        with pytest.raises(KeysRefused, match=r"no more \(ExpiredToken\), although they were read again"):
            storage.create("2", b"2")
        assert len(proxy.seen()) >= 3, "one that succeeded, one that was refused, and one with the keys as they are now"


def test_keys_that_were_never_good_are_not_waited_for(endpoint: str, tmp_path: Path) -> None:
    write_profile(tmp_path / "credentials", "wrong")
    with serve(endpoint, {}, only(word="InvalidAccessKeyId")) as (storage, proxy):
        began = time.monotonic()
        with pytest.raises(PermissionError) as failed:
            storage.create("1", b"1")
        assert not isinstance(failed.value, KeysRefused) and len(proxy.seen()) == 2
        assert time.monotonic() - began < 10


def test_a_web_identity_is_taken_from_the_environment(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("a-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", ARN)
    monkeypatch.setenv("AWS_ROLE_SESSION_NAME", "of-a-pod")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "not-this")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with serve(endpoint, {PROVIDER: f"{SDK2}.WebIdentityTokenFileCredentialsProvider"}) as (storage, proxy):
        storage.create("x", b"1")
        (key,) = set(signers(proxy))
        assert lent_roles()[key].session_name == "of-a-pod"


class _Machine(BaseHTTPRequestHandler):
    """Answers as the services of a container and of a machine on EC2. Each answer has a new key, for 10 minutes."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        ends = (datetime.now(timezone.utc) + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
        keys = {"Code": "Success", "AccessKeyId": f"key-{len(self.asked)}", "SecretAccessKey": "s", "Token": "t",
                "Expiration": ends}  # fmt: skip
        content = json.dumps(keys).encode() if not self.path.endswith("security-credentials/") else b"the-role"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"token")

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


@pytest.mark.parametrize("kind", ["container", "machine"])
def test_keys_of_a_container_and_of_a_machine(
    kind: str, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = ThreadingHTTPServer(("127.0.0.1", 0), type("Machine", (_Machine,), {"asked": []}))
    threading.Thread(target=service.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{service.server_address[1]}"
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    if kind == "container":
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/keys")
    else:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
    write_profile(tmp_path / "credentials", "not-this")
    provider = "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider"
    try:
        with serve(endpoint, {PROVIDER: provider}) as (storage, proxy):
            storage.create("1", b"1")
            assert all(each.startswith("key-") for each in signers(proxy))
            first = signers(proxy)[-1]
            proxy.decide = lambda request: PASS if request.key_id != first else Order(status=400, code="ExpiredToken")
            storage.create("2", b"2")
            assert signers(proxy)[-1].startswith("key-")
    finally:
        service.shutdown()
        service.server_close()


class HttpError(Exception):
    """As gcsfs's."""

    def __init__(self, code: int) -> None:
        super().__init__("Invalid Credentials")
        self.code = code


class RefreshError(Exception):
    """As google-auth's."""


class AzureError(Exception):
    """As azure-core's."""

    status_code = 403
    error_code = "AuthenticationFailed"


@pytest.mark.parametrize("error", [HttpError(401), RefreshError("invalid_grant"), AzureError("no")])
def test_other_stores_read_their_keys_again_too(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = ObjectStore(), ObjectStore()
    renewed: list[object] = []

    def renew(failed: object) -> object:
        renewed.append(failed)
        return new

    storage = ObjectStorage("gs://b", old, "b", exclusive=True, keys=KeySource(renew, lambda: None))

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(old, "pipe_file", fail)
    storage.create("x", b"1")
    assert renewed == [old] and storage.read("x") == b"1"


class Turning:
    """A store whose keys change: it refuses the file system that it has, and has another one after some renewals."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failures: Exception | None) -> None:
        self.old, self.new = ObjectStore(), ObjectStore()
        self._left = list(failures)
        self._patch = monkeypatch

    def open(self, url: str = "gs://b") -> ObjectStorage:
        return ObjectStorage(url, self.old, "b", exclusive=True, keys=KeySource(self._renew, lambda: None))

    def refuse(self) -> None:
        """Takes the present keys no more."""

        def fail(*_: object, **__: object) -> None:
            raise HttpError(401)

        for name in ("pipe_file", "cat_file"):
            self._patch.setattr(self.old, name, fail)

    def _renew(self, failed: object) -> object:
        failure = self._left.pop(0) if self._left else None
        if failure is not None:
            raise failure
        return self.new if not self._left else failed


def half_written() -> LogLocationError:
    """As of a file system that reads a key file which is being written."""
    error = LogLocationError("gs://b", "Expecting value: line 1 column 1 (char 0); use a directory")
    error.__cause__ = ValueError("Expecting value: line 1 column 1 (char 0)")
    return error


def test_that_keys_were_good_is_known_of_a_bucket_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    use_settings({PREFIX + "storage.retry": "20s"})
    for first, later, waits in (
        ("gs://b", "gs://b/another/path", True), ("gs://b/x", "gcs://b/y", True), ("gs://b", "gs://other", False),
        ("gs://b", "s3a://b", False),
    ):  # fmt: skip
        filesystems.forget_good_keys()
        turning = Turning(monkeypatch, None, None, None)
        turning.open(first).create("x", b"1")
        turning.refuse()
        if waits:
            turning.open(later).create("y", b"2")
            continue
        with pytest.raises(PermissionError) as failed:
            turning.open(later).create("y", b"2")
        assert not isinstance(failed.value, KeysRefused)


def test_keys_that_are_half_written_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    use_settings({PREFIX + "storage.retry": "20s"})
    turning = Turning(monkeypatch, half_written(), half_written(), None)
    storage = turning.open()
    storage.create("x", b"1")
    turning.refuse()
    storage.create("y", b"2")
    assert storage.read("y") == b"2" and storage._filesystem is turning.new


def test_keys_that_cannot_be_read_in_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    use_settings({PREFIX + "storage.retry": "300ms"})
    turning = Turning(monkeypatch, *(half_written() for _ in range(99)))
    storage = turning.open()
    storage.create("x", b"1")
    turning.refuse()
    with pytest.raises(KeysRefused, match=r"no more \(401\), and new ones cannot be read \(Expecting .*\): see"):
        storage.create("y", b"2")


@pytest.mark.parametrize("failure", [half_written(), LogLocationError("gs://b", "a package is missing")])
def test_an_error_of_the_file_system_is_raised_at_once(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys were never good; or they were, and the error is of something else."""
    turning = Turning(monkeypatch, failure)
    if failure.__cause__ is None:
        turning.open().create("x", b"1")
    turning.refuse()
    with pytest.raises(LogLocationError) as failed:
        turning.open().create("y", b"2")
    assert failed.value is failure


class Google(ObjectStore):
    """Reads its key file when it is made, as gcsfs does."""

    protocol, cachable = ("gs", "gcs"), False

    def __init__(self, token: str | None = None, **_: Any) -> None:
        super().__init__()
        json.loads(Path(str(token)).read_text())


def test_a_storage_that_is_opened_while_its_key_file_is_written_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the file is no key. At the first start it is an error."""
    plain, file = ModuleType("gcsfs.core"), tmp_path / "key.json"
    plain.GCSFileSystem = Google  # type: ignore[attr-defined]
    for name, module in {"gcsfs": ModuleType("gcsfs"), "gcsfs.core": plain}.items():
        monkeypatch.setitem(sys.modules, name, module)
    use_settings({PREFIX + "storage.retry": "20s", "fs.gs.auth.service.account.json.keyfile": str(file)})
    file.write_text('{"private')
    with pytest.raises(LogLocationError, match="Unterminated string"):
        open_storage("gs://b/log")
    file.write_text("{}")
    open_storage("gs://b/log").create("x", b"1")
    file.write_text('{"private')
    later = threading.Timer(0.5, lambda: file.write_text("{}"))
    later.start()
    open_storage("gs://b/log").create("y", b"1")
    later.join()


def test_a_refusal_of_a_user_says_nothing_of_keys() -> None:
    """Reading the keys again would not help."""
    for error in (PermissionError("Access Denied"), HttpError(403), FileNotFoundError("x")):
        assert refusal_of(error) is None


def test_a_storage_without_keys_is_as_before() -> None:
    storage: Storage = ObjectStorage("gs://b", ObjectStore(), "b", exclusive=True)
    storage.create("x", b"1")
    assert storage.read("x") == b"1"
