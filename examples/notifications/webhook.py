"""Save the notification block `custom-webhook/colleagues`, which posts messages as JSON.

python webhook.py https://chat.example.com/hooks/0123
"""

import sys

from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.settings import PREFECT_API_URL


def refuse(why):
    """Print the reason, and exit with code 2."""
    print(f"webhook.py: {why}", file=sys.stderr)
    sys.exit(2)


def main(arguments):
    if len(arguments) != 1 or not arguments[0].startswith(("http://", "https://")):
        refuse("give one address, such as https://chat.example.com/hooks/0123")
    if not PREFECT_API_URL.value():
        # A temporary server ends before it sends a message.
        refuse("no Prefect server: set PREFECT_API_URL to the address of a permanent server")
    (url,) = arguments
    CustomWebhookNotificationBlock(
        name="colleagues", url=url, json_data={"text": "{{subject}}\n{{body}}"}
    ).save("colleagues", overwrite=True)


if __name__ == "__main__":
    main(sys.argv[1:])
