"""Continuation strategies: model x engine rows that operators edit."""

from django.apps import AppConfig


class StrategiesConfig(AppConfig):
    name = "strategies"
    verbose_name = "Strategies"
    default_auto_field = "django.db.models.BigAutoField"
