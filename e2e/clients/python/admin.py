"""Administration by librdkafka (confluent-kafka): what a test needs of it.

    delete-records BOOTSTRAP TOPIC PARTITION OFFSET   prints the partition's new first offset
    set BOOTSTRAP TOPIC KEY VALUE                     changes one setting of a topic
"""

import sys

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

command, bootstrap, topic, third, last = sys.argv[1:]
admin = AdminClient({"bootstrap.servers": bootstrap})
if command == "delete-records":
    asked = TopicPartition(topic, int(third), int(last))
    for answer in admin.delete_records([asked], request_timeout=30).values():
        print(answer.result().low_watermark)
else:
    entry = ConfigEntry(third, last, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for answer in admin.incremental_alter_configs([resource], request_timeout=30).values():
        answer.result()
