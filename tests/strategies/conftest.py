"""Each test has a shelf of its own, so that no book is carried from one test to the next."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from strategies import cache


@pytest.fixture(autouse=True)
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[cache.BookShelf]:
    fresh = cache.BookShelf()
    monkeypatch.setattr(cache, "_shelf", fresh)
    yield fresh
    cache.stop()


@pytest.fixture
def staff(django_user_model: Any, client: Client) -> Callable[..., Client]:
    """A member of staff who may do what is named: `staff("view")`."""

    def login(*permissions: str) -> Client:
        user = django_user_model.objects.create_user("staff", password="x", is_staff=True)
        codes = [f"{permission}_strategy" for permission in permissions]
        user.user_permissions.set(Permission.objects.filter(codename__in=codes))
        client.force_login(user)
        return client

    return login
