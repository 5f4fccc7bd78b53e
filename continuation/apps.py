"""The gateway as a Django application."""

from django.apps import AppConfig


class ContinuationConfig(AppConfig):
    name = "continuation"
    verbose_name = "Continuation"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from continuation import checks  # noqa: F401
        from continuation.http.response import leave_request_threads_alone
        from strategies import verification

        leave_request_threads_alone()
        verification.runner = _verify


def _verify(run: int) -> None:
    from continuation.verification.runs import run_in_background

    run_in_background(run)
