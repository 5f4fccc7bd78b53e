"""How the environment becomes settings: the casts, then the settings module itself in a process of its own."""

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import environ
import pytest
from django.core.exceptions import ImproperlyConfigured
from environ.fileaware_mapping import FileAwareMapping

from gatewaysite.environment import Environment
from tests.harness.gateway import ROOT, environment

Read = Callable[[Environment], Any]


def of(**variables: str) -> Environment:
    class Isolated(environ.FileAwareEnv):  # type: ignore[misc]
        ENVIRON = FileAwareMapping(env=dict(variables))

    return Environment(Isolated())


def problem(env: Environment) -> str:
    """The one problem that was found."""
    with pytest.raises(ImproperlyConfigured) as stopped:
        env.stop_if_wrong()
    heading, *lines = str(stopped.value).splitlines()
    assert heading == "wrong settings:"
    (line,) = lines
    return line.strip()


CASTS: dict[str, tuple[Read, Any]] = {
    "text": (lambda env: env.text("X", "usual"), "usual"),
    "choice": (lambda env: env.choice("X", "", ["", "vllm", "sglang"]), ""),
    "boolean": (lambda env: env.boolean("X", True), True),
    "whole": (lambda env: env.whole("X", 30, least=1), 30),
    "seconds": (lambda env: env.seconds("X", 20), 20),
    "more than no seconds": (lambda env: env.seconds("X", 20, zero=False), 20),
    "number": (lambda env: env.number("X", 1.6), 1.6),
    "url": (lambda env: env.url("X"), ""),
    "words": (lambda env: env.words("X", "a,b"), ["a", "b"]),
    "finish reasons": (lambda env: env.finish_reasons("X", "abort,error"), ["abort", "error"]),
    "prefixes": (lambda env: env.prefixes("X", "*"), ["*"]),
    "database": (lambda env: env.database("X", "sqlite:////srv/usual")["NAME"], "/srv/usual"),
    "redis": (lambda env: env.redis("X"), ""),
    "keys": (lambda env: env.keys("X"), []),
    "bearer": (lambda env: env.bearer("X"), ""),
    "header and value": (lambda env: env.header_and_value("X"), None),
    "secret words": (lambda env: env.secret_words("X"), []),
    "header names": (lambda env: env.header_names("X", "*key*,*token*"), ["*key*", "*token*"]),
    "origins": (lambda env: env.origins("X"), []),
    "directory": (lambda env: env.directory("X"), ""),
}
# 32 bytes each, the first without and the last with what url-safe base64 has of its own
KEYS = [base64.urlsafe_b64encode(bytes([fill]) * 32).decode() for fill in (0, 0xFB)]


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("variables", [{}, {"X": ""}, {"X": "\n"}], ids=["unset", "empty", "a line end"])
def test_a_variable_that_is_not_given_has_its_default(name: str, variables: dict[str, str]) -> None:
    read, default = CASTS[name]
    env = of(**variables)
    assert read(env) == default
    env.stop_if_wrong()


@pytest.mark.parametrize(
    "name, raw, value",
    [
        ("text", " as it is ", " as it is "),
        ("text", "$HOME", "$HOME"),
        ("text", r"\$x", r"\$x"),
        ("text", "line\r\n", "line"),
        ("choice", "vllm", "vllm"),
        ("choice", " SGLang ", "sglang"),
        *[("boolean", raw, True) for raw in ("1", "true", "True", "YES", "on", " true ")],
        *[("boolean", raw, False) for raw in ("0", "false", "False", "NO", "off")],
        ("whole", "1", 1),
        ("whole", " 12 ", 12),
        ("seconds", "0", 0),
        ("seconds", "0.5", 0.5),
        ("more than no seconds", "1e1", 10),
        ("number", "4", 4),
        ("url", "http://router:8000", "http://router:8000"),
        ("url", "https://user:word@host/base/", "https://user:word@host/base"),
        ("url", " http://[::1]:8000// ", "http://[::1]:8000"),
        ("words", " a , b,,c ", ["a", "b", "c"]),
        ("words", ",", []),
        ("finish reasons", " Network_Error ,abort,gpu-lost", ["network_error", "abort", "gpu-lost"]),
        ("finish reasons", ",", []),
        ("prefixes", "/v1/, /tokenize", ["/v1/", "/tokenize"]),
        ("prefixes", "*", ["*"]),
        ("database", "postgres://me:w%40rd@db:5433/gateway?sslmode=require", "gateway"),
        ("database", "sqlite:////srv/gateway.sqlite3", "/srv/gateway.sqlite3"),
        *[
            ("redis", raw, raw.strip())
            for raw in (
                "redis://host",
                "redis://host/",
                "redis://:word@host:6379/0",
                " rediss://me:w%40rd%23@[::1]:6380/15?ssl_cert_reqs=none ",
                "unix:///run/redis.sock",
                "unix://me:word@/run/redis.sock?db=1",
            )
        ],
        ("keys", KEYS[0], KEYS[:1]),
        ("keys", f" {KEYS[1]} , {KEYS[0]},", [KEYS[1], KEYS[0]]),
        ("bearer", "aZ09-._~+/==", "aZ09-._~+/=="),
        ("bearer", " word ", "word"),
        ("header and value", " X-Forwarded-Proto :https ", ("HTTP_X_FORWARDED_PROTO", "https")),
        ("secret words", " a-b , c", ["a-b", "c"]),
        ("header names", " X-Tenant-ID , *Key*,", ["x-tenant-id", "*key*"]),
        ("header names", "*", ["*"]),
        ("origins", "*", ["*"]),
        ("origins", "https://app.example.org", ["https://app.example.org"]),
        (
            "origins",
            " HTTPS://App.Example.org:8443 , http://localhost:3000,http://[::1]:80,https://a_b.c:443",
            ["https://app.example.org:8443", "http://localhost:3000", "http://[::1]", "https://a_b.c"],
        ),
        ("directory", "/", "/"),
        ("directory", "/proc/self/..", "/proc"),
    ],
)
def test_a_right_value_is_understood(name: str, raw: str, value: Any) -> None:
    env = of(X=raw)
    assert CASTS[name][0](env) == value
    env.stop_if_wrong()


@pytest.mark.parametrize(
    "name, raw, allowed",
    [
        ("choice", "tgi", "one of: (empty), vllm, sglang"),
        *[
            ("boolean", raw, "true or false (also 1/0, yes/no, on/off)")
            for raw in ("Flase", "tru", "2", "none", "t", " ")
        ],
        *[
            ("whole", raw, "a whole number, 1 or more")
            for raw in ("0", "-1", "1.5", "ten", "1e3", "0x10", "nan")
        ],
        *[
            ("seconds", raw, "a number of seconds, 0 or more")
            for raw in ("-0.1", "20s", "inf", "nan", "1e999")
        ],
        *[
            ("more than no seconds", raw, "a number of seconds, more than 0")
            for raw in ("0", "0.0", "-0", "-1")
        ],
        *[("number", raw, "a number, 0 or more") for raw in ("1,6", "-1", "Infinity")],
        *[
            ("url", raw, "an http:// or https:// URL with a host, without query or fragment")
            for raw in (
                "router:8000",
                "/v1",
                "ftp://host",
                "http://",
                "http://:8000",
                "http://host:port",
                "http://host:70000",
                "http://ho st",
                "http://host/?",
                "http://host/?x=1",
                "http://host/#x",
                "http://[::1",
            )
        ],
        *[
            (
                "finish reasons",
                raw,
                "comma-separated words of 1 to 64 letters, digits, _ . or -, but none of "
                "content_filter, function_call, length, stop, tool_calls",
            )
            for raw in ("stop", "abort,Length", "tool_calls", "a b", "x" * 65, '"abort"')
        ],
        *[
            ("prefixes", raw, "* or comma-separated path prefixes that begin with /")
            for raw in ("v1", "/v1,tokenize", "**", ",")
        ],
        *[
            (
                "origins",
                raw,
                "* or comma-separated origins such as https://app.example.org:8443, without path",
            )
            for raw in (
                ",",
                "*,https://a.b",
                "https://*.example.org",
                "null",
                "app.example.org",
                "//app.example.org",
                "https://",
                "https://a.b/",
                "https://a.b/path",
                "https://a.b?x",
                "https://a.b#x",
                "https://a.b:",
                "https://a.b:0",
                "https://a.b:65536",
                "https://a.b:x",
                "https://[::1",
                "https://[1:2",
                "https://a b",
                "https://b\u00fccher.example",
                "ftp://a.b",
            )
        ],
        *[
            ("header and value", raw, "a header and its value, such as X-Forwarded-Proto: https")
            for raw in ("https", "X-Proto:", ": https", "X_Proto: https", "X-Proto: a b", "X-Proto=https")
        ],
        *[
            ("header names", raw, "comma-separated names of headers, in which * stands for anything")
            for raw in (",", "x y", "x:y", "[ab]", "x?", "caf\u00e9")
        ],
        *[
            ("directory", raw, "a directory that exists and can be written to")
            for raw in ("/nowhere/at/all", "/etc/passwd")
        ],
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(name: str, raw: str, allowed: str) -> None:
    env = of(X=raw)
    assert CASTS[name][0](env) == CASTS[name][1]
    assert problem(env) == f"X: {raw!r} is not allowed; allowed is {allowed}"


@pytest.mark.parametrize(
    "raw",
    [
        "nonsense",
        "foo://me:secret@host/name",
        "me:secret@host/name",
        "postgres://me:secret@host:99999/name",
        "sqlite://secret.sqlite3",
    ],
)
def test_a_wrong_database_is_refused_without_showing_it(raw: str, recwarn: pytest.WarningsRecorder) -> None:
    env = of(DATABASE_URL=raw)
    env.database("DATABASE_URL", "sqlite:////srv/usual")
    assert problem(env) == (
        "DATABASE_URL: the value given is not allowed; allowed is a database URL such as "
        "sqlite:///path/file.sqlite3 or postgres://user:password@host/name"
    )
    assert not recwarn.list


SECRETS = {
    "redis": "a Redis URL such as redis://:password@host:6379/0, rediss://host or unix:///path/redis.sock",
    "keys": "comma-separated keys of 32 bytes each, in url-safe base64: 44 characters, the last one =",
    "bearer": "letters, digits and any of . _ ~ + / - with any = at the end",
    "secret words": "comma-separated words, at least one",
}


@pytest.mark.parametrize(
    "name, raw",
    [
        *[
            ("redis", raw)
            for raw in (
                "secret",
                "secret:6379",
                "redis://",
                "redis:///0",
                "redis://:secret@host/name",
                "redis://:secret@host/0/1",
                "redis://:secret@host:99999",
                "redis://:sec/ret@host",
                "redis://:sec#ret@host",
                "redis://:sec ret@host",
                "http://:secret@host",
                "unix://",
                "unix:///",
                "unix://secret",
            )
        ],
        *[
            ("keys", raw)
            for raw in (
                ",",
                "secret",
                f"{KEYS[0]},secret",
                KEYS[0][:-1],
                KEYS[0][:-4],
                f"{KEYS[0]}=",
                f"{KEYS[0][:42]}B=",
                base64.b64encode(b"\xfb" * 32).decode(),
                f"{KEYS[0]} {KEYS[1]}",
            )
        ],
        *[("secret words", raw) for raw in (",", " , ")],
        *[
            ("bearer", raw)
            for raw in (" ", "sec ret", "s\u00e9cret", "=secret", "sec=ret", 'sec"ret', "sec\tret")
        ],
    ],
)
def test_a_wrong_secret_is_refused_without_showing_it(name: str, raw: str) -> None:
    env = of(X=raw)
    assert CASTS[name][0](env) == CASTS[name][1]
    assert problem(env) == f"X: the value given is not allowed; allowed is {SECRETS[name]}"


@pytest.mark.parametrize(
    "raw, shown",
    [
        ("ftp://me:secret@host", "ftp://***@host"),
        ("http://me:sec/ret@host:port", "http://***@host:port"),
        ("me:secret@host", "***@host"),
    ],
)
def test_a_login_in_a_wrong_url_is_not_shown(raw: str, shown: str) -> None:
    env = of(X=raw)
    env.url("X")
    assert problem(env).startswith(f"X: '{shown}' is not allowed")


def test_all_problems_are_reported_at_once() -> None:
    env = of(A="Flase", B="x", C="ftp://x")
    env.boolean("A", False)
    env.whole("B", 1)
    env.url("C")
    with pytest.raises(ImproperlyConfigured) as stopped:
        env.stop_if_wrong()
    assert [line.split(":")[0].strip() for line in str(stopped.value).splitlines()[1:]] == ["A", "B", "C"]


@pytest.mark.parametrize("name", CASTS)
def test_any_variable_can_come_from_a_file(name: str, tmp_path: Path) -> None:
    right = {
        "text": "secret",
        "choice": "vllm",
        "boolean": "no",
        "whole": "7",
        "url": "http://host",
        "words": "c",
        "finish reasons": "abort",
        "prefixes": "/v1/",
        "database": "sqlite:////srv/other",
        "redis": "redis://host",
        "keys": KEYS[0],
        "bearer": "word",
        "header names": "x-tenant",
        "header and value": "X-Forwarded-Proto: https",
        "secret words": "word",
        "origins": "https://a.b",
        "directory": str(tmp_path),
    }.get(name, "3.5")
    file = tmp_path / "value"
    file.write_text(right + "\n")
    read, default = CASTS[name]
    env = of(X_FILE=str(file), X="overruled")
    assert read(env) == read(of(X=right)) != default
    env.stop_if_wrong()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        env = of(SECRET_KEY_FILE=str(path))
        env.text("SECRET_KEY")
        assert problem(env).startswith("SECRET_KEY_FILE cannot be read: ")
        assert str(path) in problem(env)


def test_a_file_that_is_no_text_is_named_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"secret \xff\xfe")
    env = of(SECRET_KEY_FILE=str(file))
    env.text("SECRET_KEY")
    assert problem(env).startswith("SECRET_KEY_FILE cannot be read: ")
    assert "secret" not in problem(env)


# -- the settings module ---------------------------------------------------------------------------

SHOW = """
import json, sys
from gatewaysite import settings
names = [name for name in dir(settings) if name.isupper()]
print(json.dumps({name: getattr(settings, name) for name in names}, default=str))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A copy of the settings, and of what they read, in a directory where a `.env` can be put."""
    for package in ("gatewaysite", "strategies"):
        shutil.copytree(ROOT / package, tmp_path / package)
    return tmp_path


def load(site: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    unset = environment({}, site)
    clean = {
        name: value for name, value in unset.items() if value and name not in ("SECRET_KEY", "DATABASE_URL")
    }
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", SHOW],
        cwd=site,
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def loaded(site: Path, **variables: str) -> dict[str, Any]:
    done = load(site, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    settings: dict[str, Any] = json.loads(done.stdout)
    return settings


def test_the_defaults_are_those_of_the_settings_table(site: Path) -> None:
    settings = loaded(site)
    assert {
        "DOWNSTREAM_URL": "",
        "CONTINUATION_URL": "",
        "CONTINUATION_API_KEY": "",
        "CONTINUATION_MODEL": "",
        "CONTINUATION_ENGINE": "",
        "CONTINUATION_ENABLED": True,
        "STALL_IDLE_TIMEOUT_SECONDS": 20,
        "CONNECT_TIMEOUT_SECONDS": 30,
        "MAX_CONTINUATION_BODY_MB": 10,
        "MAX_REQUEST_BODY_MB": 100,
        "DOWNSTREAM_CONNECTION_LIMIT": 0,
        "DOWNSTREAM_KEEPALIVE_SECONDS": 3,
        "CJK_CHARS_PER_TOKEN": 1.6,
        "OTHER_CHARS_PER_TOKEN": 4.0,
        "PASSTHROUGH_PATHS": ["*"],
        "KEEPALIVE_SECONDS": 0,
        "STRATEGY_REFRESH_SECONDS": 5,
        "AUDIT_RETENTION_DAYS": 30,
        "AUDIT_STORE_TEXT": False,
        "GATEWAY_ROLE": "all",
        "LOG_FORMAT": "text",
        "DEBUG": False,
        "SECURE_COOKIES": False,
        "SECURE_SSL_REDIRECT": False,
        "SECURE_PROXY_SSL_HEADER": None,
        "SECURE_HSTS_SECONDS": 0,
        "SECURE_HSTS_INCLUDE_SUBDOMAINS": False,
        "SECRET_KEY_FALLBACKS": [],
        "LOGIN_FAILURE_LIMIT": 5,
        "LOGIN_LOCKOUT_SECONDS": 900,
        "TRUSTED_PROXY_COUNT": 0,
        "RESUME_MODE": "opt-in",
        "RESUME_GRACE_SECONDS": 120,
        "RESUME_TTL_SECONDS": 300,
        "RESUME_MAX_EVENTS": 20000,
        "RESUME_MAX_BYTES": 4194304,
        "RESUME_MAX_STREAMS": 10000,
        "RESUME_MAX_TOTAL_BYTES": 268435456,
        "RESUME_CHECKPOINT_SECONDS": 5,
        "RESUME_ENCRYPTION_KEYS": [],
        "CREDENTIAL_HEADERS": ["*auth*", "*cookie*", "*key*", "*secret*", "*token*"],
        "REDIS_URL": "",
        "METRICS_TOKEN": "",
        "PROMETHEUS_MULTIPROC_DIR": "",
        "CORS_ALLOWED_ORIGINS": [],
        "CORS_ALLOW_ALL_ORIGINS": False,
    }.items() <= settings.items()
    assert settings["DATABASES"]["default"]["NAME"] == str(site / "db.sqlite3")
    assert settings["SECRET_KEY_IS_RANDOM"]
    assert len(settings["SECRET_KEY"]) >= 50


def test_leg_2_goes_where_leg_1_went_unless_told_otherwise(site: Path) -> None:
    settings = loaded(site, DOWNSTREAM_URL="http://router:8000/")
    assert settings["CONTINUATION_URL"] == "http://router:8000"
    settings = loaded(site, DOWNSTREAM_URL="http://router:8000", CONTINUATION_URL="http://second:8000")
    assert settings["CONTINUATION_URL"] == "http://second:8000"


CORS = "corsheaders.middleware.CorsMiddleware"


def test_without_origins_no_request_passes_through_their_middleware(site: Path) -> None:
    assert CORS not in loaded(site)["MIDDLEWARE"]


def test_origins_bring_their_middleware_in_before_all_others(site: Path) -> None:
    settings = loaded(site, CORS_ALLOWED_ORIGINS="https://a.b,https://c.d")
    assert settings["MIDDLEWARE"][0] == CORS
    assert settings["CORS_ALLOWED_ORIGINS"] == ["https://a.b", "https://c.d"]
    assert not settings["CORS_ALLOW_ALL_ORIGINS"]


def test_all_origins_are_a_word_to_the_middleware_and_no_origin(site: Path) -> None:
    settings = loaded(site, CORS_ALLOWED_ORIGINS="*")
    assert settings["MIDDLEWARE"][0] == CORS
    assert settings["CORS_ALLOWED_ORIGINS"] == []
    assert settings["CORS_ALLOW_ALL_ORIGINS"]


@pytest.mark.parametrize(
    "name, value",
    [
        ("RESUME_GRACE_SECONDS", "0"),
        ("RESUME_MAX_STREAMS", "0"),
        ("RESUME_MAX_TOTAL_BYTES", "0"),
        ("RESUME_MAX_EVENTS", "1"),
        ("RESUME_MAX_BYTES", "1"),
    ],
)
def test_the_least_of_each_limit_is_taken(site: Path, name: str, value: str) -> None:
    assert loaded(site, **{name: value})[name] == int(value)


def test_what_would_leave_nothing_to_resume_is_refused(site: Path) -> None:
    names = ("RESUME_TTL_SECONDS", "RESUME_MAX_EVENTS", "RESUME_MAX_BYTES", "RESUME_CHECKPOINT_SECONDS")
    done = load(site, **dict.fromkeys(names, "0"))
    assert done.returncode != 0
    assert all(f"  {name}: '0' is not allowed" in done.stderr for name in names)


def test_sqlite_waits_for_locks_and_other_databases_keep_their_options(site: Path) -> None:
    options = loaded(site, DATABASE_URL="sqlite:////srv/x.sqlite3?timeout=3")["DATABASES"]["default"][
        "OPTIONS"
    ]
    assert (options["timeout"], options["transaction_mode"]) == (3, "IMMEDIATE")
    postgres = loaded(site, DATABASE_URL="postgres://u:p@h/n?sslmode=require")["DATABASES"]["default"]
    assert postgres["OPTIONS"] == {"sslmode": "require"}
    assert (postgres["ENGINE"], postgres["CONN_MAX_AGE"]) == ("django.db.backends.postgresql", 0)


def test_an_empty_line_of_the_env_file_gives_way_to_a_file_which_is_named_if_it_cannot_be_read(
    site: Path,
) -> None:
    (site / ".env").write_text("DOWNSTREAM_URL=http://there\nSECRET_KEY=\n")
    (site / "key").write_text("from a file\n")
    assert loaded(site, SECRET_KEY_FILE=str(site / "key"))["SECRET_KEY"] == "from a file"
    refused = load(site, SECRET_KEY_FILE=str(site / "nowhere"))
    assert refused.returncode != 0
    assert "SECRET_KEY_FILE cannot be read" in refused.stderr


def test_a_env_file_is_read_and_the_process_environment_wins(site: Path) -> None:
    (site / "key").write_text("from a file\n")
    (site / ".env").write_text(
        "# a comment\n"
        "DOWNSTREAM_URL=http://of-the-file:1\n"
        "export CONTINUATION_MODEL='Qwen/Qwen3.6'\n"
        "CONTINUATION_API_KEY=$ecret\n"
        f"SECRET_KEY_FILE={site / 'key'}\n"
        "KEEPALIVE_SECONDS=15\n"
    )
    settings = loaded(site, DOWNSTREAM_URL="http://of-the-process:2")
    assert settings["DOWNSTREAM_URL"] == "http://of-the-process:2"
    assert settings["CONTINUATION_MODEL"] == "Qwen/Qwen3.6"
    assert settings["CONTINUATION_API_KEY"] == "$ecret"
    assert settings["SECRET_KEY"] == "from a file"
    assert not settings["SECRET_KEY_IS_RANDOM"]
    assert settings["KEEPALIVE_SECONDS"] == 15


def test_wrong_settings_stop_the_start_all_named_at_once_and_no_secret_shown(site: Path) -> None:
    done = load(
        site,
        CONTINUATION_ENABLED="Flase",
        STALL_IDLE_TIMEOUT_SECONDS="0",
        AUDIT_RETENTION_DAYS="a month",
        GATEWAY_ROLE="worker",
        LOG_FORMAT="xml",
        DATABASE_URL="mistake://me:secret@host/name",
        DOWNSTREAM_URL="router:8000",
        CONTINUATION_API_KEY="secret",
        SECRET_KEY="secret",
        REDIS_URL="redis://:secret@host:port",
        RESUME_ENCRYPTION_KEYS="secret",
        METRICS_TOKEN="secret word",
        RESUME_TTL_SECONDS="0",
        RESUME_MODE="sometimes",
        CORS_ALLOWED_ORIGINS="https://app.example.org/",
    )
    assert done.returncode != 0
    heading, *lines = done.stderr[done.stderr.index("ImproperlyConfigured: ") :].splitlines()
    assert heading == "ImproperlyConfigured: wrong settings:"
    assert {line.split(":")[0].strip() for line in lines} == {
        "CONTINUATION_ENABLED",
        "STALL_IDLE_TIMEOUT_SECONDS",
        "AUDIT_RETENTION_DAYS",
        "GATEWAY_ROLE",
        "LOG_FORMAT",
        "DATABASE_URL",
        "DOWNSTREAM_URL",
        "REDIS_URL",
        "RESUME_ENCRYPTION_KEYS",
        "METRICS_TOKEN",
        "RESUME_TTL_SECONDS",
        "RESUME_MODE",
        "CORS_ALLOWED_ORIGINS",
    }
    assert "  GATEWAY_ROLE: 'worker' is not allowed; allowed is one of: all, proxy, admin" in lines
    assert "secret" not in done.stderr + done.stdout
