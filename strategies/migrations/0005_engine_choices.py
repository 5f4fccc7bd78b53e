from django.db import migrations, models

import strategies.engines


class Migration(migrations.Migration):
    dependencies = [("strategies", "0004_reasoning_end")]

    operations = [
        migrations.AlterField(
            model_name="strategy",
            name="engine",
            field=models.CharField(
                choices=strategies.engines.engine_choices,
                default="any",
                help_text=(
                    "The engine at CONTINUATION_URL that this row is right for. A row for the engine named by "
                    "CONTINUATION_ENGINE is preferred to one for any."
                ),
                max_length=10,
            ),
        )
    ]
