"""Save the notification block `custom-webhook/colleagues`: what it is told, it posts as JSON.

python webhook.py https://chat.example.com/hooks/0123
"""

import sys

from prefect.blocks.notifications import CustomWebhookNotificationBlock

CustomWebhookNotificationBlock(
    name="colleagues",
    url=sys.argv[1],
    json_data={"text": "{{subject}}\n{{body}}"},
).save("colleagues", overwrite=True)
