"""The built-in strategies, where there are none: an operator's rows are never touched."""

from typing import Any

from django.db import migrations

from strategies.builtin import builtin_rows


def load_into_empty_table(apps: Any, schema_editor: Any) -> None:
    database = schema_editor.connection.alias
    strategy = apps.get_model("strategies", "Strategy")
    if strategy.objects.using(database).exists():
        return
    # A later version's rows may name fields that this migration does not know yet.
    known = {field.name for field in strategy._meta.get_fields()}
    for row in builtin_rows():
        strategy.objects.using(database).create(**{name: row[name] for name in row.keys() & known})
    revision = apps.get_model("strategies", "StrategyRevision")
    revision.objects.using(database).get_or_create(pk=1, defaults={"counter": 1})


def keep_rows(apps: Any, schema_editor: Any) -> None:
    """Which rows are still as they were loaded is not known, so all stay; going forward again finds them."""


class Migration(migrations.Migration):
    dependencies = [("strategies", "0001_strategy")]

    operations = [migrations.RunPython(load_into_empty_table, keep_rows)]
