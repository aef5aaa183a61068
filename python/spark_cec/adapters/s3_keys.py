"""Keys of S3 from the sources that Hadoop's `fs.s3a.aws.credentials.provider` names.

Hadoop's classes run in the JVM. The agent asks the same sources through aiobotocore, which renews keys that end: those
of an assumed role, of a web identity, of a container and of a machine. A class that is not in the list here is refused.
"""

from __future__ import annotations

import getpass
import importlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from spark_cec.errors import LogLocationError

S3A = "fs.s3a."
PROVIDER = "aws.credentials.provider"
ROLE = "assumed.role."
NAMES = (
    *("access.key", "secret.key", "session.token", PROVIDER, PROVIDER + ".mapping"),
    *("auth.profile.name", "auth.profile.file"),
    *(ROLE + each for each in ("arn", "session.name", "session.duration", "policy", "external.id")),
    *(ROLE + each for each in ("sts.endpoint", "sts.endpoint.region", "credentials.provider")),
)
"""The settings of S3A that say where keys come from, without `S3A`."""

Get = Callable[[str], str | None]
"""The value of a setting of S3A for one bucket; None if there is none."""

_HADOOP = "org.apache.hadoop.fs.s3a."
_SDK1, _SDK2 = "com.amazonaws.auth.", "software.amazon.awssdk.auth.credentials."
_STS2 = "software.amazon.awssdk.services.sts.auth."

_ENVIRONMENT, _WEB, _CONTAINER, _INSTANCE = "env", "assume-role-with-web-identity", "container-role", "iam-role"
_OF_PROFILES = (
    *("assume-role", _WEB, "sso", "shared-credentials-file", "login", "custom-process", "config-file"),
)  # fmt: skip
_WHOLE = ("*",)
"""Stands for the whole chain of botocore."""

_CHAINS: Mapping[str, tuple[str, ...]] = {
    _SDK1 + "EnvironmentVariableCredentialsProvider": (_ENVIRONMENT,),
    _SDK2 + "EnvironmentVariableCredentialsProvider": (_ENVIRONMENT,),
    _HADOOP + "auth.IAMInstanceCredentialsProvider": (_CONTAINER, _INSTANCE),
    _HADOOP + "SharedInstanceCredentialProvider": (_CONTAINER, _INSTANCE),
    _SDK1 + "EC2ContainerCredentialsProviderWrapper": (_CONTAINER, _INSTANCE),
    _SDK1 + "InstanceProfileCredentialsProvider": (_CONTAINER, _INSTANCE),
    _SDK1 + "ContainerCredentialsProvider": (_CONTAINER,),
    _SDK2 + "ContainerCredentialsProvider": (_CONTAINER,),
    _SDK2 + "InstanceProfileCredentialsProvider": (_INSTANCE,),
    _HADOOP + "auth.ProfileAWSCredentialsProvider": _OF_PROFILES,
    _SDK1 + "profile.ProfileCredentialsProvider": _OF_PROFILES,
    _SDK2 + "ProfileCredentialsProvider": _OF_PROFILES,
    _SDK1 + "WebIdentityTokenCredentialsProvider": (_WEB,),
    _SDK2 + "WebIdentityTokenFileCredentialsProvider": (_WEB,),
    _STS2 + "StsWebIdentityTokenFileCredentialsProvider": (_WEB,),
    _SDK1 + "DefaultAWSCredentialsProviderChain": _WHOLE,
    _SDK2 + "DefaultCredentialsProvider": _WHOLE,
}
"""Hadoop's and Amazon's classes, and the sources of botocore that stand for each."""

_TEMPORARY = _HADOOP + "TemporaryAWSCredentialsProvider"
_SIMPLE = frozenset({_HADOOP + "SimpleAWSCredentialsProvider", _HADOOP + "BasicAWSCredentialsProvider"})
_ANONYMOUS = frozenset({
    _HADOOP + "AnonymousAWSCredentialsProvider", _SDK1 + "AnonymousAWSCredentials",
    _SDK2 + "AnonymousCredentialsProvider",
})  # fmt: skip
_ASSUMED = _HADOOP + "auth.AssumedRoleCredentialProvider"

_HADOOPS_DEFAULT = frozenset({
    _TEMPORARY, _HADOOP + "SimpleAWSCredentialsProvider", _SDK2 + "EnvironmentVariableCredentialsProvider",
    _HADOOP + "auth.IAMInstanceCredentialsProvider",
})  # fmt: skip
"""What the setting says where nobody has set it."""

_UNITS_S = {"": 1, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SHORTEST_S, _LONGEST_S = 900, 43_200
"""How long a session of a role may last, as STS says."""

_EARLY_S, _LATE_S = 300.0, 60.0
"""Keys of a role are renewed so long before they end: if nobody else does that, and in any case."""


@dataclass(frozen=True, slots=True)
class GivenKeys:
    """Keys that stand in the settings."""

    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Chain:
    """Sources of botocore. `profile` and `file`: for profiles, if they are not the usual ones."""

    sources: tuple[str, ...]
    profile: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """A role that STS lends to the holder of the keys of `base`."""

    arn: str
    session: str
    duration_s: int
    policy: str | None
    external_id: str | None
    endpoint: str | None
    region: str
    base: Plan


@dataclass(frozen=True, slots=True)
class Plan:
    """Where to look for keys, in this order. `is_anonymous`: requests have none."""

    sources: tuple[GivenKeys | Chain | Role, ...]
    is_anonymous: bool = False

    @property
    def is_given(self) -> bool:
        """Whether keys stand in the settings, so that no source renews them: those of a role's base, too."""
        first = self.sources[0] if self.sources else None
        return isinstance(first, GivenKeys) or (isinstance(first, Role) and first.base.is_given)


def plan_keys(url: str, get: Get) -> Plan | None:
    """Where the keys for a URL come from; None for the chain of S3's own client alone.

    Raises `LogLocationError` if a setting names a source that the agent cannot ask, or sources without keys.
    """
    given = _given_keys(url, get)
    names = _split(get(PROVIDER))
    if not names or set(names) == _HADOOPS_DEFAULT:
        return None if given is None else Plan((given,))
    plan = _plan(url, get, PROVIDER, names)
    if not plan.sources and not plan.is_anonymous:
        raise LogLocationError(
            url,
            f"{S3A}{PROVIDER} names {', '.join(names)}, which take keys of {S3A}access.key and its like, and these are "
            f"not set: set them, or name another source",
        )
    return plan


def options_of(plan: Plan | None, url: str) -> dict[str, Any]:
    """The options of s3fs for a plan. `LogLocationError` for this URL if it names a profile that is not there."""
    if plan is None:
        return {}
    if plan.is_anonymous:
        return {"anon": True}
    first = plan.sources[0]
    if isinstance(first, GivenKeys):
        return {"key": first.key, "secret": first.secret, "token": first.token}
    try:
        return {"session": _find_session(plan)}
    except Exception as error:
        if type(error).__name__ != "ProfileNotFound":
            raise
        raise LogLocationError(url, f"{error}: correct {S3A}auth.profile.name, or AWS_PROFILE") from error


def forget_sessions() -> None:
    """Makes each session anew when it is asked for: it then reads all keys again."""
    with _turn:
        _sessions.clear()


_sessions: dict[Plan, Any] = {}
"""One session for each plan, because fsspec knows file systems by the identity of their options."""

_turn = threading.Lock()


def _find_session(plan: Plan) -> Any:
    with _turn:
        if plan not in _sessions:
            _sessions[plan] = _make_session(plan)
        return _sessions[plan]


def _plan(url: str, get: Get, setting: str, names: list[str]) -> Plan:
    given = _given_keys(url, get)
    renamed = dict(each.split("=", 1) for each in _split(get(PROVIDER + ".mapping")) if "=" in each)
    found: list[GivenKeys | Chain | Role] = []
    for name in names:
        known = renamed.get(name, name).strip()
        if known in _ANONYMOUS:
            if not found:
                return Plan((), is_anonymous=True)
            raise LogLocationError(
                url, f"{S3A}{setting} names {name} after other sources, which is not supported: name it alone"
            )
        if known == _TEMPORARY or known in _SIMPLE:
            with_token = given is not None and given.token is not None
            if given is not None and (with_token or known in _SIMPLE):
                found.append(given if known == _TEMPORARY else GivenKeys(given.key, given.secret, None))
        elif known == _ASSUMED and setting == PROVIDER:
            found.append(_find_role(url, get))
        elif known in _CHAINS:
            sources, is_profile = _CHAINS[known], _CHAINS[known] is _OF_PROFILES
            found.append(
                Chain(sources, get("auth.profile.name"), get("auth.profile.file")) if is_profile else Chain(sources)
            )
        else:
            raise LogLocationError(
                url,
                f"{S3A}{setting} names {name}, which the agent cannot ask for keys: name one of those in "
                f"docs/storage.md (Keys), such as {_ASSUMED}",
            )
    return Plan(tuple(found))


def _given_keys(url: str, get: Get) -> GivenKeys | None:
    key, secret = get("access.key"), get("secret.key")
    if (key is None) != (secret is None):
        missing = "secret.key" if secret is None else "access.key"
        raise LogLocationError(url, f"{S3A}{missing} is not set, and the other key is: set both, or none")
    return None if key is None or secret is None else GivenKeys(key, secret, get("session.token"))


def _find_role(url: str, get: Get) -> Role:
    def ask(name: str) -> str | None:
        return get(ROLE + name)

    def refuse(name: str, why: str) -> LogLocationError:
        return LogLocationError(url, f"{S3A}{ROLE}{name}{why}")

    arn, region, setting = ask("arn"), ask("sts.endpoint.region"), ROLE + "credentials.provider"
    if arn is None:
        raise refuse("arn", f" is not set, and {S3A}{PROVIDER} names an assumed role: set it")
    endpoint = ask("sts.endpoint")
    if endpoint is not None and region is None:
        raise refuse("sts.endpoint", f"={endpoint!r} has no region: set {S3A}{ROLE}sts.endpoint.region, too")
    duration = ask("session.duration") or "30m"
    duration_s = _duration_s(duration)
    if duration_s is None or not _SHORTEST_S <= duration_s <= _LONGEST_S:
        raise refuse("session.duration", f"={duration!r} is not a time from 15m to 12h: give one, such as 30m")
    base = _plan(url, get, setting, _split(ask("credentials.provider")) or _role_default())
    if not base.sources:
        raise refuse("credentials.provider", f" finds no keys in {S3A}access.key and its like: set them, or another")
    return Role(
        arn,
        ask("session.name") or re.sub(r"[^\w+=,.@-]", "-", f"spark-cec-{getpass.getuser()}")[:64],
        int(duration_s),
        ask("policy"),
        ask("external.id"),
        endpoint if endpoint is None or "://" in endpoint else f"https://{endpoint}",
        region or get("endpoint.region") or "us-east-1",
        base,
    )


def _role_default() -> list[str]:
    return [_HADOOP + "SimpleAWSCredentialsProvider", _SDK2 + "EnvironmentVariableCredentialsProvider"]


def _duration_s(value: str) -> float | None:
    """Hadoop's form of a duration; seconds without a unit."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*([a-z]*)\s*", value.lower())
    return float(found[1]) * _UNITS_S[found[2]] if found is not None and found[2] in _UNITS_S else None


def _split(value: str | None) -> list[str]:
    return [each.strip() for each in (value or "").split(",") if each.strip()]


def _make_session(plan: Plan) -> Any:
    """A session of aiobotocore whose keys come from the sources of a plan."""
    session = importlib.import_module("aiobotocore.session").AioSession()
    providers = [each for source in plan.sources for each in _providers_of(source)]
    resolver = importlib.import_module("aiobotocore.credentials").AioCredentialResolver(providers)
    session.register_component("credential_provider", resolver)
    return session


def _providers_of(source: GivenKeys | Chain | Role) -> Iterator[Any]:
    if isinstance(source, GivenKeys):
        yield _GivenProvider(source)
    elif isinstance(source, Role):
        yield _RoleProvider(source)
    else:
        session = importlib.import_module("aiobotocore.session").AioSession(profile=source.profile)
        if source.file is not None:
            session.set_config_variable("credentials_file", source.file)
        for each in session.get_component("credential_provider").providers:
            if source.sources == _WHOLE or each.METHOD in source.sources:
                yield each


class _GivenProvider:
    """Loads the keys of the settings, for aiobotocore."""

    METHOD = "spark-settings"

    def __init__(self, keys: GivenKeys) -> None:
        self._keys = keys

    async def load(self) -> Any:
        credentials = importlib.import_module("aiobotocore.credentials")
        return credentials.AioCredentials(self._keys.key, self._keys.secret, self._keys.token, method=self.METHOD)


class _RoleProvider:
    """Loads the keys of an assumed role, for aiobotocore, and renews them before they end."""

    METHOD = "assume-role"

    def __init__(self, role: Role) -> None:
        self._role = role
        self._base = _make_session(role.base)

    async def load(self) -> Any:
        credentials = importlib.import_module("aiobotocore.credentials")
        first = await self._assume()
        # A session may be shorter than botocore's own margin of 15 minutes: it would ask STS before each request.
        rest_s = (datetime.fromisoformat(first["expiry_time"]) - datetime.now(timezone.utc)).total_seconds()
        return credentials.AioRefreshableCredentials.create_from_metadata(
            first,
            refresh_using=self._assume,
            method=self.METHOD,
            advisory_timeout=min(_EARLY_S, rest_s / 3),
            mandatory_timeout=min(_LATE_S, rest_s / 6),
        )

    async def _assume(self) -> dict[str, str]:
        role = self._role
        asked: dict[str, Any] = {
            "RoleArn": role.arn, "RoleSessionName": role.session, "DurationSeconds": role.duration_s,
            "Policy": role.policy, "ExternalId": role.external_id,
        }  # fmt: skip
        config = importlib.import_module("aiobotocore.config").AioConfig(
            connect_timeout=10, read_timeout=20, retries={"total_max_attempts": 2}
        )
        made = self._base.create_client("sts", region_name=role.region, endpoint_url=role.endpoint, config=config)
        async with made as client:
            answer = await client.assume_role(**{name: value for name, value in asked.items() if value is not None})
        keys = answer["Credentials"]
        return {
            "access_key": keys["AccessKeyId"], "secret_key": keys["SecretAccessKey"], "token": keys["SessionToken"],
            "expiry_time": keys["Expiration"].isoformat(),
        }  # fmt: skip
