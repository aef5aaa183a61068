"""Storage on HDFS through `hdfs-native`, a client without a JVM. Each file is written whole.

A file becomes visible by one rename in the name node: a hidden file beside it, closed before, gets the name. So no
reader sees a part, and of several creators exactly one succeeds. A growing file would not do: the client of a reader
says that an open file has 0 bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from spark_cec.adapters.hadoop_settings import find_hdfs, find_retry_s
from spark_cec.adapters.hdfs_client import LEAST_S, HdfsClient, load_library
from spark_cec.adapters.retries import repeat
from spark_cec.errors import AlreadyExists, CecError, LogLocationError, NoAnswer
from spark_cec.log.frame import Buffer
from spark_cec.log.storage import Listing, StoredFile, probe

SCHEMES = frozenset({"hdfs", "viewfs"})

_PORT = 8020
"""The port of a name node whose URL has none, as Hadoop says."""

_ADDRESS, _NAME_NODES = "dfs.namenode.rpc-address.", "dfs.ha.namenodes."
_PLAIN = re.compile(r"[A-Za-z0-9_.~/:@!$&'()*+,;=-]+")
"""A mount's target is a URL. With other characters it may be another path than it seems."""

_PROVIDER = "dfs.client.failover.proxy.provider."
_ACTIVE_ONLY = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
"""Asks the active name node for everything. An observer may not know yet of a file that another client has created."""

_ONE_ATTEMPT = {"dfs.client.failover.max.attempts": "1"}
"""Turns the client's own pauses off: `_repeat` repeats a call, for as long as the setting says."""

_HIDDEN = re.compile(r"\..+\.[0-9a-f]{16}")
_LEFT_AFTER_S = 86_400.0
"""A hidden file of this age has no living writer."""

_FAILURE = re.compile(
    r'(?P<kind>\w+)(?:\((?:"(?P<first>(?:[^"\\]|\\.)*)"(?:, "(?P<second>(?:[^"\\]|\\.)*)")?)?.*)?', re.S
)
"""How the client writes an error that has no class of its own: `RPCError("java.io.IOException", "said\\n\\tat …")`."""

_OF_SYSTEM = re.compile(r"\(os error (\d+)\)$")
"""The operating system's number at the end of an error of a connection."""

_NUMBERS = {
    "AccessControlException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "SafeModeException": errno.EAGAIN,
    "NSQuotaExceededException": errno.EDQUOT,
    "DSQuotaExceededException": errno.EDQUOT,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "InvalidPathException": errno.EINVAL,
    "SASLError": errno.EACCES,
    "GSSAPIError": errno.EACCES,
    "NoSASLMechanism": errno.EACCES,
}
"""The error numbers of Hadoop's exceptions, and of the client's own kinds of errors."""

_PASSING = frozenset({
    *("StandbyException", "RetriableException", "ObserverRetryOnActiveException", "SafeModeException"),
    *("NotReplicatedYetException", "LeaseExpiredException", "RetryStartFileException", "IpcException"),
    *("DataTransferError", "ChecksumError", "BlocksNotFound", "OperationFailed", "IOError", "InvalidRPCResponse"),
})  # fmt: skip
"""Failures that may pass. Of the client's own kinds: a data node is gone, or its block was replaced meanwhile."""

_NO_DATA_NODE = "could only be written to"
"""What the name node says while too few data nodes are up."""

_CLASSES = (
    *((FileNotFoundError, errno.ENOENT), (FileExistsError, errno.EEXIST), (IsADirectoryError, errno.EISDIR)),
    *((PermissionError, errno.EACCES), (NotImplementedError, errno.ENOTSUP)),
)  # fmt: skip

_clients: dict[tuple[object, ...], Any] = {}
_turn = threading.Lock()

_Answer = TypeVar("_Answer")


class _Again(OSError):
    """The hidden file has to be written anew, under another name."""


def open_hdfs(url: str, confirm: Callable[[], object] = lambda: None) -> HdfsStorage:
    """The storage at a URL of `SCHEMES`; asks the name node nothing. `LogLocationError` if the URL has no meaning.

    `confirm` is called before a call is repeated; its error ends the repetition.
    """
    scheme, _, rest = url.partition(":")
    authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    settings = find_hdfs()
    if not authority:
        default, _, place = settings.get("fs.defaultFS", "").partition("://")
        authority = place.partition("/")[0] if default == scheme else ""
    client = _find_client(url, scheme, authority, settings)
    root = f"/{path.strip('/')}".rstrip("/")
    known = _find_place(scheme, authority, root, settings)
    return HdfsStorage(url, client, root, known, _write_options(url, settings), confirm)


def _find_place(scheme: str, authority: str, root: str, settings: Mapping[str, str]) -> tuple[str, str]:
    """The cluster and the directory behind mounts, default ports and name services, as far as the settings say it.

    Two URLs of one directory may still have two places, if the files of `HADOOP_CONF_DIR` alone tell that. Two
    directories never have one.
    """
    if scheme == "viewfs":
        target = _find_mount(authority, root, settings)
        if target is None:
            return f"{scheme}://{authority}", root
        authority, _, path = target.partition("/")
        root = f"/{path}".rstrip("/")
    cluster = _with_port(f"hdfs://{authority}", settings)
    for key, address in settings.items():
        service = key.removeprefix(_ADDRESS).rpartition(".")[0]
        if key.startswith(_ADDRESS) and f"hdfs://{address}" == cluster and f"dfs.ha.namenodes.{service}" in settings:
            return f"hdfs://{service}", root
    return cluster, root


def _find_mount(table: str, root: str, settings: Mapping[str, str]) -> str | None:
    """The authority and the path on HDFS of a path of `viewfs`; None if its mount leads to nothing that is known."""
    prefix = f"fs.viewfs.mounttable.{table}.link"
    of_table = {key.removeprefix(f"{prefix}."): to for key, to in settings.items() if key.startswith(f"{prefix}.")}
    links = {path.rstrip("/"): to for path, to in of_table.items()}
    mounted = [path for path in links if f"{root}/".startswith(f"{path}/")]
    path = max(mounted, key=len, default="")
    target = links[path] if mounted else settings.get(f"{prefix}Fallback", "")
    scheme, _, place = target.partition("://")
    known = scheme == "hdfs" and _PLAIN.fullmatch(place) is not None
    return f"{place.rstrip('/')}{root[len(path) :]}" if known else None


def _find_client(url: str, scheme: str, authority: str, settings: Mapping[str, str]) -> Any:
    """One client for all storages of a cluster: it has threads and connections."""
    services = {authority, *settings.get("dfs.nameservices", "").replace(" ", "").split(",")} - {""}
    config = {
        **{key: _with_port(value, settings) if ".link" in key else value for key, value in settings.items()},
        **{_PROVIDER + service: _ACTIVE_ONLY for service in services},
        **_ONE_ATTEMPT,
    }
    key = (scheme, authority, frozenset(config.items()))
    with _turn:
        if key not in _clients:
            _name_user(settings)
            _clients[key] = HdfsClient(
                lambda made: _make_client(url, f"{scheme}://{authority}", _begin_elsewhere(config, made)),
                lambda: max(LEAST_S, find_retry_s()),
            )
        return _clients[key]


def _begin_elsewhere(config: Mapping[str, str], made: int) -> dict[str, str]:
    """The settings, with another name node first in each name service than in those of the client before.

    A client goes on to the next one after an error alone, and a name node that is silent gives none.
    """
    nodes = {key: value.replace(" ", "").split(",") for key, value in config.items() if key.startswith(_NAME_NODES)}
    turned = {key: each[made % len(each) :] + each[: made % len(each)] for key, each in nodes.items()}
    return {**config, **{key: ",".join(each) for key, each in turned.items()}}


def _make_client(url: str, root: str, config: dict[str, str]) -> Any:
    library = load_library(url)
    try:
        try:
            return library.Client(f"{root}/", config)
        except RuntimeError:  # no name service has the name, not even in HADOOP_CONF_DIR: it is that of a host
            with_port = _with_port(root, config)
            if with_port == root:
                raise
            return library.Client(f"{with_port}/", config)
    except Exception as error:
        mend = "set fs.defaultFS, or the name service's dfs.ha.namenodes.* and dfs.namenode.rpc-address.*"
        if root.startswith("viewfs"):
            mend = "set fs.viewfs.mounttable.NAME.link.* and .linkFallback, or give the URL of an HDFS"
        raise LogLocationError(url, f"{_explain(error)}; {mend} (spark.hadoop.*, or HADOOP_CONF_DIR)") from error


def _with_port(url: str, settings: Mapping[str, str]) -> str:
    """The URL with Hadoop's port, if it names a host without one."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if scheme != "hdfs" or not host or ":" in host or f"dfs.ha.namenodes.{host}" in settings:
        return url
    address = settings.get(f"{_ADDRESS}{host}", f"{host}:{_PORT}")
    return f"{scheme}{separator}{address}{slash}{path}"


def _name_user(settings: Mapping[str, str]) -> None:
    """Without Kerberos, executors act for the user of `SPARK_USER`, whoever runs their processes. So does the agent."""
    user = os.environ.get("SPARK_USER")
    if user and settings.get("hadoop.security.authentication", "simple").lower() == "simple":
        os.environ.setdefault("HADOOP_USER_NAME", user)


def _write_options(url: str, settings: Mapping[str, str]) -> dict[str, int]:
    """Those that Hadoop's own client takes from its settings, too. Without a setting the name node's default holds."""
    options: dict[str, int] = {}
    mask = settings.get("fs.permissions.umask-mode", "022")
    if re.fullmatch("[0-7]{1,4}", mask) is None:
        raise LogLocationError(url, f"fs.permissions.umask-mode={mask!r} is not known: give it as octal digits")
    options["permission"] = 0o666 & ~int(mask, 8)
    if settings.get("dfs.replication", "").isdecimal():
        options["replication"] = int(settings["dfs.replication"])
    return options


class HdfsStorage:
    """Files below one directory of HDFS. Every error is an `OSError` that names the file by its URL.

    A call whose failure may pass is repeated, for at most `cec.storage.retry`: while the name node fails over, restarts
    or is in safe mode. A call without an answer ends after that time, too (`HdfsClient`). A file is as durable as HDFS
    makes it when it is closed.
    """

    can_append = False

    def __init__(
        self,
        url: str,
        client: HdfsClient,
        root: str,
        place: tuple[str, str],
        options: Mapping[str, int],
        confirm: Callable[[], object] = lambda: None,
    ) -> None:
        """`place`: the cluster and the directory, in one spelling. `options`: for the files that it writes."""
        self.url = url
        self._client = client
        self._root = root
        self._place = place
        self._options = options
        self._confirm = confirm
        self._undropped: set[str] = set()

    @property
    def place(self) -> tuple[str, str]:
        """The cluster and the directory, in one spelling."""
        return self._place

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """A range of the file."""
        return b"" if length == 0 else self._repeat(path, lambda: self._read_once(path, offset, length))

    def _read_once(self, path: str, offset: int, length: int | None) -> bytes:
        return self._client.read(self._full_path(path), offset, length)

    def size(self, path: str) -> int:
        """Bytes in the file."""
        status = self._repeat(path, lambda: self._client.get_file_info(self._full_path(path)))
        if status.isdir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._url_of(path))
        return int(status.length)

    def list(self, directory: str) -> Listing:
        """The files directly in a directory."""
        return self._repeat(directory, lambda: self._list_once(directory))

    def _list_once(self, directory: str) -> Listing:
        place = self._full_path(directory)
        try:
            found = [each for each in self._client.list_status(place) if not each.isdir and each.path != place]
        except FileNotFoundError:
            return []
        files = [StoredFile(str(each.path).rsplit("/", 1)[-1], int(each.length)) for each in found]
        return sorted(file for file in files if not file.name.startswith("."))

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return self._repeat(path, lambda: self._is_file(path))

    def _is_file(self, path: str) -> bool:
        try:
            return not self._client.get_file_info(self._full_path(path)).isdir
        except FileNotFoundError:
            return False

    def delete(self, path: str) -> None:
        """Deletes the file, if it exists."""
        self._repeat(path, lambda: self._client.delete(self._full_path(path), False))

    def delete_all(self, paths: Sequence[str]) -> None:
        """Deletes the files that exist."""
        for path in paths:
            self.delete(path)

    def sync(self, path: str) -> None:
        """Checks that the file exists: its writer closed it before it got its name."""
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._url_of(path))

    def local_path(self, path: str) -> str | None:
        """None: the file is not on this machine's file system."""
        return None

    def create(self, path: str, data: Buffer) -> None:
        """Writes a hidden file, then renames it, unless the name is taken."""
        self._write(path, bytes(data), overwrites=False)

    def replace(self, path: str, data: Buffer) -> None:
        """Writes a hidden file, then renames it over the name."""
        self._write(path, bytes(data), overwrites=True)

    def append_to_new(self, path: str) -> NoReturn:
        """Raises `OSError`: readers would not see how far the file has grown."""
        raise OSError(errno.ENOTSUP, "HDFS files are written whole", self._url_of(path))

    def probe_writable(self) -> None:
        """Lets several creators race for a small file, then removes what killed writers left."""
        probe(self)
        self._repeat("", self._remove_leftovers)

    def is_taken(self) -> bool:
        """Whether there is a file or a directory, even an empty or hidden one, at the root."""

        def look() -> bool:
            try:
                self._client.get_file_info(self._full_path(""))
            except FileNotFoundError:
                return False
            return True

        return self._repeat("", look)

    def remove_all(self) -> None:
        """Removes the root with its content, if it exists."""
        self._repeat("", lambda: self._client.delete(self._full_path(""), True))

    def _write(self, path: str, content: bytes, *, overwrites: bool) -> None:
        hidden: list[str] = []

        def attempt() -> None:
            if not hidden:
                hidden.append(self._write_hidden(path, content))
            try:
                self._rename(hidden[0], path, content, overwrites=overwrites)
            except _Again:
                hidden.clear()
                raise

        try:
            self._repeat(path, attempt)
        except BaseException:
            # Also a rename that is still on its way then has no file any more.
            for name in hidden:
                self._drop(name)
            raise
        for name in tuple(self._undropped):  # the name node answers again
            self._drop(name)

    def _write_hidden(self, path: str, content: bytes) -> str:
        """Writes a hidden file beside the path, and gives its name. Each attempt has a name of its own.

        The client repeats a call without a word, so a second attempt under the same name could meet the first one.
        """
        directory, _, name = self._full_path(path).rpartition("/")
        hidden = f"{directory}/.{name}.{secrets.token_hex(8)}"
        try:
            self._client.write(hidden, content, self._options)
        except (FileExistsError, FileNotFoundError) as error:  # by an earlier call of ours; its directory was removed
            self._drop(hidden)
            raise _Again(errno.EAGAIN, _explain(error)) from error
        except BaseException:
            self._drop(hidden)
            raise
        return hidden

    def _rename(self, hidden: str, path: str, content: bytes, *, overwrites: bool) -> None:
        """Gives the hidden file its name.

        If the answer to a rename gets lost, the call is repeated, by the client or by `_repeat`. Then the hidden file
        is not there any more, which a name node notices before it looks at the new name.
        """
        try:
            self._client.rename(hidden, self._full_path(path), overwrites)
        except FileExistsError as error:
            raise AlreadyExists(path) from error
        except FileNotFoundError as error:
            try:
                known = self._read_once(path, 0, None)
            except FileNotFoundError:
                raise _Again(errno.EAGAIN, _explain(error)) from error
            if known != content and not overwrites:
                raise AlreadyExists(path) from error

    def _drop(self, hidden: str) -> None:
        """Deletes a hidden file. If the name node does not answer, the next write that succeeds tries it again.

        Until then the file stays, and nobody lists it.
        """
        self._undropped.add(hidden)
        with contextlib.suppress(Exception):
            self._client.delete(hidden, False, LEAST_S)
            self._undropped.discard(hidden)

    def _remove_leftovers(self) -> None:
        oldest_ms = (time.time() - _LEFT_AFTER_S) * 1000
        with contextlib.suppress(FileNotFoundError):
            for each in self._client.list_status(self._full_path(""), True):
                is_hidden = _HIDDEN.fullmatch(str(each.path).rsplit("/", 1)[-1]) is not None
                if is_hidden and not each.isdir and each.modification_time < oldest_ms:
                    self._client.delete(each.path, False)

    def _full_path(self, path: str) -> str:
        return (f"{self._root}/{path}" if path else self._root) or "/"

    def _url_of(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/{path}" if path else self.url

    def _repeat(self, path: str, action: Callable[[], _Answer]) -> _Answer:
        """Does the action, again and again while its failure may pass, for at most `cec.storage.retry`."""
        with self._naming(path):
            return repeat(action, _may_pass, find_retry_s(), self._confirm)

    @contextlib.contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Turns each error of the client into an `OSError` with a number and the file's URL."""
        try:
            yield
        except CecError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # a panic of Rust
                raise
            known = NoAnswer if _may_pass(error) else OSError
            raise known(_number_of(error), _explain(error), self._url_of(path)) from error


def _parse(error: BaseException) -> tuple[str, str]:
    """The name of Hadoop's exception, or of the client's own kind of error, and what it says."""
    found = _FAILURE.fullmatch(str(error)) if isinstance(error, RuntimeError) else None
    if found is None:
        return "", (error.strerror if isinstance(error, OSError) else None) or str(error)
    if found["kind"] in ("RPCError", "FatalRPCError") and found["second"] is not None:
        return found["first"].rpartition(".")[2], found["second"]
    return found["kind"], found["first"] or str(error)


def _may_pass(error: BaseException) -> bool:
    """Whether the same call may succeed a little later."""
    if any(isinstance(error, known) for known, _ in _CLASSES):
        return False
    if isinstance(error, OSError):  # refused, reset, no answer, no such host yet
        return True
    kind, said = _parse(error)
    return kind in _PASSING or (kind == "IOException" and _NO_DATA_NODE in said)


def _number_of(error: BaseException) -> int:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    known = next((number for each, number in _CLASSES if isinstance(error, each)), None)
    kind, said = _parse(error)
    if known is None and (system := _OF_SYSTEM.search(said)) is not None:
        return int(system[1])
    if known is None and "must both be directories" in said:
        return errno.EISDIR
    return known or _NUMBERS.get(kind, errno.EIO)


def _explain(error: BaseException) -> str:
    """The first line of what the error says, without Java's stack."""
    kind, said = _parse(error)
    line = said.replace('\\"', '"').partition("\\n")[0].partition("\n")[0][:200]
    return f"{kind}: {line}" if kind else line
