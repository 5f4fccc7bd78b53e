"""Settings, all from the environment (`.env` and `NAME_FILE` are read too). docs/settings.md has the table."""

import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

import environ  # type: ignore[import-untyped]
from corsheaders.defaults import default_headers
from csp.constants import NONE, SELF

from gatewaysite.environment import Environment
from strategies.engines import Engine

BASE_DIR = Path(__file__).resolve().parent.parent
_environ = environ.FileAwareEnv()
if (BASE_DIR / ".env").is_file():
    # Not _environ: it would read the files that are named there already, and fail less politely.
    environ.Env.read_env(BASE_DIR / ".env")
_env = Environment(_environ)

# -- the gateway ---------------------------------------------------------------------------------
DOWNSTREAM_URL = _env.url("DOWNSTREAM_URL")
CONTINUATION_URL = _env.url("CONTINUATION_URL") or DOWNSTREAM_URL
CONTINUATION_API_KEY = _env.text("CONTINUATION_API_KEY")
CONTINUATION_MODEL = _env.text("CONTINUATION_MODEL").strip()
CONTINUATION_ENGINE = _env.choice("CONTINUATION_ENGINE", "", ["", *Engine.real()])
CONTINUATION_ENABLED = _env.boolean("CONTINUATION_ENABLED", True)
BUFFER_TOOL_CALLS = _env.boolean("BUFFER_TOOL_CALLS", False)
BUFFER_TOOL_CALLS_MAX_BYTES = _env.whole("BUFFER_TOOL_CALLS_MAX_BYTES", 1048576)
STALL_IDLE_TIMEOUT_SECONDS = _env.seconds("STALL_IDLE_TIMEOUT_SECONDS", 20, zero=False)
FAILED_FINISH_REASONS = _env.finish_reasons(
    "FAILED_FINISH_REASONS", "abort,error,insufficient_system_resource,network_error"
)
DOWNSTREAM_KEEPALIVE_SECONDS = _env.seconds("DOWNSTREAM_KEEPALIVE_SECONDS", 3)
CONNECT_TIMEOUT_SECONDS = _env.seconds("CONNECT_TIMEOUT_SECONDS", 30, zero=False)
MAX_CONTINUATION_BODY_MB = _env.number("MAX_CONTINUATION_BODY_MB", 10)
MAX_REQUEST_BODY_MB = _env.number("MAX_REQUEST_BODY_MB", 100, zero=False)
DOWNSTREAM_CONNECTION_LIMIT = _env.whole("DOWNSTREAM_CONNECTION_LIMIT", 0)
CJK_CHARS_PER_TOKEN = _env.number("CJK_CHARS_PER_TOKEN", 1.6, zero=False)
OTHER_CHARS_PER_TOKEN = _env.number("OTHER_CHARS_PER_TOKEN", 4.0, zero=False)
PASSTHROUGH_PATHS = _env.prefixes("PASSTHROUGH_PATHS", "*")
DERENDER_BATCH_CHUNKS = _env.whole("DERENDER_BATCH_CHUNKS", 8, least=1)
KEEPALIVE_SECONDS = _env.seconds("KEEPALIVE_SECONDS", 0)
CLIENT_STALL_TIMEOUT_SECONDS = _env.seconds("CLIENT_STALL_TIMEOUT_SECONDS", 120, zero=False)
CLIENT_HEAD_TIMEOUT_SECONDS = _env.seconds("CLIENT_HEAD_TIMEOUT_SECONDS", 30, zero=False)
CLIENT_BODY_TIMEOUT_SECONDS = _env.seconds("CLIENT_BODY_TIMEOUT_SECONDS", 60, zero=False)
CLIENT_BODY_BYTES_PER_SECOND = _env.number("CLIENT_BODY_BYTES_PER_SECOND", 500)
GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS = _env.seconds_if_any("GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS")
STRATEGY_REFRESH_SECONDS = _env.seconds("STRATEGY_REFRESH_SECONDS", 5, zero=False)
AUDIT_RETENTION_DAYS = _env.whole("AUDIT_RETENTION_DAYS", 30, least=1)
AUDIT_STORE_TEXT = _env.boolean("AUDIT_STORE_TEXT", False)
METRICS_TOKEN = _env.bearer("METRICS_TOKEN")
PROMETHEUS_MULTIPROC_DIR = _env.directory("PROMETHEUS_MULTIPROC_DIR")
GATEWAY_ROLE = _env.choice("GATEWAY_ROLE", "all", ["all", "proxy", "admin"])

# -- resuming -------------------------------------------------------------------------------------
RESUME_MODE = _env.choice("RESUME_MODE", "opt-in", ["off", "opt-in", "always"])
RESUME_GRACE_SECONDS = _env.seconds("RESUME_GRACE_SECONDS", 120)
RESUME_TTL_SECONDS = _env.seconds("RESUME_TTL_SECONDS", 300, zero=False)
RESUME_MAX_EVENTS = _env.whole("RESUME_MAX_EVENTS", 20000, least=1)
RESUME_MAX_BYTES = _env.whole("RESUME_MAX_BYTES", 4194304, least=1)
RESUME_MAX_STREAMS = _env.whole("RESUME_MAX_STREAMS", 10000)
RESUME_MAX_TOTAL_BYTES = _env.whole("RESUME_MAX_TOTAL_BYTES", 268435456)
RESUME_CHECKPOINT_SECONDS = _env.seconds("RESUME_CHECKPOINT_SECONDS", 5, zero=False)
RESUME_ENCRYPTION_KEYS = _env.keys("RESUME_ENCRYPTION_KEYS")
CREDENTIAL_HEADERS = _env.header_names("CREDENTIAL_HEADERS", "*auth*,*cookie*,*key*,*secret*,*token*")
REDIS_URL = _env.redis("REDIS_URL")

# -- browsers of other origins (django-cors-headers) ----------------------------------------------
CORS_ALLOWED_ORIGINS = _env.origins("CORS_ALLOWED_ORIGINS")
CORS_ALLOW_ALL_ORIGINS = CORS_ALLOWED_ORIGINS == ["*"]
if CORS_ALLOW_ALL_ORIGINS:
    CORS_ALLOWED_ORIGINS = []
CORS_URLS_REGEX = r"/v1/(chat/completions\Z|streams/)"
CORS_ALLOW_METHODS = ["GET", "POST", "DELETE", "OPTIONS"]
CORS_ALLOW_HEADERS = [
    *default_headers,
    "cache-control",
    "last-event-id",
    "x-continuation",
    "x-request-id",
    "x-resumable",
    "x-resume-events",
    "x-resume-token",
    # what OpenAI's client for JavaScript sends
    "openai-organization",
    "openai-project",
    "x-stainless-arch",
    "x-stainless-custom-poll-interval",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-poll-helper",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
]
CORS_EXPOSE_HEADERS = [
    "Retry-After",
    "X-Continuation",
    "X-Last-Event-Id",
    "X-Request-Id",
    "X-Resume",
    "X-Resume-Token",
    "X-Stream-Id",
]

# -- Django --------------------------------------------------------------------------------------
DEBUG = _env.boolean("DEBUG", False)
SECRET_KEY = _env.text("SECRET_KEY")
SECRET_KEY_IS_RANDOM = not SECRET_KEY
if SECRET_KEY_IS_RANDOM:
    SECRET_KEY = secrets.token_urlsafe(50)
SECRET_KEY_FALLBACKS = _env.secret_words("SECRET_KEY_FALLBACKS")
ALLOWED_HOSTS = _env.words("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = [origin for origin in _env.words("CSRF_TRUSTED_ORIGINS", "") if origin]
SECURE_COOKIES = _env.boolean("SECURE_COOKIES", False)
SECURE_SSL_REDIRECT = _env.boolean("SECURE_SSL_REDIRECT", False)
SECURE_PROXY_SSL_HEADER = _env.header_and_value("SECURE_PROXY_SSL_HEADER")
SECURE_HSTS_SECONDS = _env.whole("SECURE_HSTS_SECONDS", 0)
SECURE_HSTS_INCLUDE_SUBDOMAINS = _env.boolean("SECURE_HSTS_INCLUDE_SUBDOMAINS", False)
LOGIN_FAILURE_LIMIT = _env.whole("LOGIN_FAILURE_LIMIT", 5)
LOGIN_LOCKOUT_SECONDS = _env.seconds("LOGIN_LOCKOUT_SECONDS", 900, zero=False)
TRUSTED_PROXY_COUNT = _env.whole("TRUSTED_PROXY_COUNT", 0)
LOG_FORMAT = _env.choice("LOG_FORMAT", "text", ["text", "json"])


def _database(config: dict[str, Any]) -> dict[str, Any]:
    """No connection outlives its request; SQLite waits for locks and lets readers and one writer work together."""
    config["CONN_MAX_AGE"] = 0
    if config.get("ENGINE") == "django.db.backends.sqlite3":
        config["OPTIONS"] = {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            **config.get("OPTIONS", {}),
        }
    return config


DATABASES = {"default": _database(_env.database("DATABASE_URL", f"sqlite:///{BASE_DIR / 'db.sqlite3'}"))}

_env.stop_if_wrong()

INSTALLED_APPS = [
    "daphne",
    "gatewaysite.admin.GatewayAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "axes",
    "strategies.apps.StrategiesConfig",
    "continuation.apps.ContinuationConfig",
]
# CsrfViewMiddleware is left out: it would cost every proxied request a thread, and the admin's views
# protect themselves with the decorator. The others act on the site's own pages only.
MIDDLEWARE = [
    "gatewaysite.middleware.SiteSecurityMiddleware",
    "gatewaysite.middleware.SiteCSPMiddleware",
    "gatewaysite.middleware.SiteTextMiddleware",
    "gatewaysite.middleware.SiteSessionMiddleware",
    "gatewaysite.middleware.SiteCommonMiddleware",
    "gatewaysite.middleware.SiteAuthenticationMiddleware",
    "gatewaysite.middleware.SiteMessageMiddleware",
    "gatewaysite.middleware.SiteXFrameOptionsMiddleware",
    "gatewaysite.middleware.SiteAxesMiddleware",
]
# These four look for middleware by its name, and ours derives from what they look for. W010 names a setting that is
# called otherwise here: continuation.W010 stands for it.
SILENCED_SYSTEM_CHECKS = ["axes.W002", "security.W001", "security.W002", "security.W003", "security.W010"]
if CORS_ALLOWED_ORIGINS or CORS_ALLOW_ALL_ORIGINS:
    MIDDLEWARE.insert(0, "corsheaders.middleware.CorsMiddleware")
ROOT_URLCONF = "gatewaysite.urls"
ASGI_APPLICATION = "gatewaysite.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
APPEND_SLASH = False
# The views have limits of their own, and answer in JSON.
DATA_UPLOAD_MAX_MEMORY_SIZE = None
DATA_UPLOAD_MAX_NUMBER_FIELDS = None
LANGUAGE_CODE = "en"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "/static/"

# -- the security of the admin ---------------------------------------------------------------------
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_COOKIES
# A script for pages of other sites may be loaded from pages without TLS.
SECURE_REDIRECT_EXEMPT = [r"^static/"]
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    },
}
# A login is refused after failures with one user name from one address: neither alone, for one address may
# stand for all who come through a proxy, and one name for the only operator.
AXES_ENABLED = LOGIN_FAILURE_LIMIT > 0
AXES_FAILURE_LIMIT = LOGIN_FAILURE_LIMIT
AXES_COOLOFF_TIME = timedelta(seconds=LOGIN_LOCKOUT_SECONDS)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_CLIENT_IP_CALLABLE = "gatewaysite.login.client_address"
AXES_CLIENT_STR_CALLABLE = "gatewaysite.login.client_shown"
AXES_LOCKOUT_CALLABLE = "gatewaysite.login.refused"
AXES_DISABLE_ACCESS_LOG = True  # nobody would delete its rows
AXES_VERBOSE = False

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
        "json": {
            "()": "pythonjsonlogger.json.JsonFormatter",
            "format": "%(asctime)s %(levelname)s %(name)s %(message)s",
        },
    },
    "filters": {"own_trouble": {"()": "gatewaysite.logs.OwnTrouble"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        "django.request": {"filters": ["own_trouble"]},
        "django.security.DisallowedHost": {"level": "CRITICAL"},  # anybody can cause it, at will
        "axes": {"level": "WARNING"},
        "daphne": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
    },
}
