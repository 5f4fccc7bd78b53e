"""The playground's page: who may see it, what it says of this process, and the breaking of an engine's connection."""

import re
from html.parser import HTMLParser
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.staticfiles import finders
from django.test import AsyncClient, Client

from continuation.lifecycle import Process
from continuation.resume import token as tokens

EVENTS = "/admin/continuation/continuationevent/"
PAGE = f"{EVENTS}playground/"
BREAK = f"{PAGE}break/"


def person(*permissions: str, staff: bool = True) -> Client:
    user = User.objects.create_user("somebody", is_staff=staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


class Parts(HTMLParser):
    """Of a page: where its scripts and styles come from, and what would be run or styled in place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.in_place: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "link", "img", "iframe"):
            self.addresses.append(given.get("src") or given.get("href") or "")
        if (tag == "script" and "src" not in given) or tag == "style":
            self.in_place.append(tag)
        self.in_place += [name for name in given if name.startswith("on") or name == "style"]


# -- who may ---------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_stranger_is_asked_to_log_in(client: Client) -> None:
    for answer in (client.get(PAGE), client.post(BREAK, {"stream": "x"}), person(staff=False).get(PAGE)):
        assert answer.status_code == 302
        assert answer["Location"].startswith("/admin/login/?next=/admin/")


@pytest.mark.django_db
def test_staff_may_play_if_they_may_see_the_audit() -> None:
    client = person("view_continuationevent")
    assert client.get(PAGE).status_code == 200
    for page in ("/admin/", "/admin/continuation/", EVENTS):
        assert f'href="{PAGE}"' in client.get(page).content.decode(), page


@pytest.mark.django_db
def test_staff_who_may_not_see_the_audit_may_not_play_nor_find_the_link() -> None:
    client = person("view_user")
    assert client.get(PAGE).status_code == 403
    assert client.post(BREAK, {"stream": "x"}).status_code == 403
    assert PAGE not in client.get("/admin/").content.decode()


# -- the page --------------------------------------------------------------------------------------


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing_in_place(admin_client: Client) -> None:
    text = admin_client.get(PAGE).content.decode()
    parts = Parts(text)
    assert all(re.match(r"/(static|admin)/", address) for address in parts.addresses), parts.addresses
    assert parts.in_place == []
    for needed in ("continuation/playground.js", "continuation/playground.css"):
        assert f"/static/{needed}" in parts.addresses
    for needed in ("playground.js", "playground.css", "resumable.js"):
        found = finders.find(f"continuation/{needed}")
        assert isinstance(found, str), needed
        with open(found, encoding="utf-8") as file:
            assert not re.search(r"https?://(?!gateway\.example)", file.read()), needed


async def test_the_module_is_served_as_javascript(db: None) -> None:
    answer = await AsyncClient().get("/static/continuation/resumable.js")
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/javascript")


def test_the_page_says_what_cannot_be_had_here(admin_client: Client, settings: Any) -> None:
    def notices() -> set[str]:
        text = admin_client.get(PAGE).content.decode()
        return set(re.findall(r'id="(no-gateway|not-resumable)"', text))

    assert notices() == set()
    settings.RESUME_MODE = "off"
    assert notices() == {"not-resumable"}
    settings.GATEWAY_ROLE = "admin"
    assert notices() == {"no-gateway"}
    settings.RESUME_MODE = "opt-in"
    assert notices() == {"no-gateway"}


def test_the_page_offers_the_model_that_runs_behind_the_gateway(admin_client: Client, settings: Any) -> None:
    settings.CONTINUATION_MODEL = '"><b>house'
    assert 'value="&quot;&gt;&lt;b&gt;house"' in admin_client.get(PAGE).content.decode()


# -- the engine ------------------------------------------------------------------------------------


class Relay:
    """As much of a relay as breaking its leg needs."""

    def __init__(self) -> None:
        self.broken = 0
        self.splice = type("Splice", (), {"ended": False})()

    def break_leg(self) -> None:
        self.broken += 1


@pytest.fixture
def relay(process: Process) -> Relay:
    """Of the stream `ours`, which runs in this process."""
    relay = Relay()
    process.generations.add(Mock(relay=relay, writer=Mock(stream_id="ours")))
    return relay


def test_a_callers_own_stream_is_broken(admin_client: Client, relay: Relay) -> None:
    own = {"X-Resume-Token": tokens.issue("ours", "Bearer me"), "Authorization": "Bearer me"}
    answer = admin_client.post(BREAK, {"stream": "ours"}, headers=own)
    assert (answer.status_code, answer.json()["broken"], relay.broken) == (200, True, 1)


@pytest.mark.parametrize(
    ("stream", "token", "authorization"),
    [
        ("ours", tokens.issue, "Bearer another"),
        ("ours", lambda *_: "", "Bearer me"),
        ("ours", lambda *_: "forged", "Bearer me"),
        ("ours", lambda _, caller: tokens.issue("theirs", caller), "Bearer me"),
        ("theirs", tokens.issue, "Bearer me"),
        ("theirs", lambda _, caller: tokens.issue("theirs", caller), "Bearer me"),
    ],
)
def test_a_stream_that_is_not_the_callers_or_runs_elsewhere_is_not_broken_and_the_reason_is_told(
    admin_client: Client, relay: Relay, stream: str, token: Any, authorization: str
) -> None:
    headers = {"X-Resume-Token": token("ours", "Bearer me"), "Authorization": authorization}
    answer = admin_client.post(BREAK, {"stream": stream}, headers=headers)
    assert (answer.status_code, answer.json()["broken"], relay.broken) == (200, False, 0)
    assert "another process" in answer.json()["message"]


def test_breaking_needs_a_post_with_a_csrf_token(admin_user: User, relay: Relay) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    own = {"X-Resume-Token": tokens.issue("ours", "")}
    assert client.get(BREAK).status_code == 405
    assert client.post(BREAK, {"stream": "ours"}, headers=own).status_code == 403
    page = client.get(PAGE).content.decode()
    found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert found is not None
    answer = client.post(BREAK, {"stream": "ours"}, headers={**own, "X-CSRFToken": found[1]})
    assert (answer.json()["broken"], relay.broken) == (True, 1)
