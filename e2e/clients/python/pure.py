"""The kafka-python client of the end-to-end tests; see ../README.md for what it prints."""

import time

import common
from kafka import KafkaConsumer, KafkaProducer


def produce(bootstrap, topic, first, count, rate):
    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        acks="all",
        enable_idempotence=True,
        linger_ms=5,
        delivery_timeout_ms=120000,
        request_timeout_ms=30000,
    )
    futures = []
    start = time.monotonic()
    for i in range(count):
        common.pace(start, i, rate)
        value = first + i
        futures.append((value, producer.send(topic, key=str(value).encode(), value=f"{value:<100}".encode())))
    producer.flush(timeout=120)
    for value, future in futures:
        try:
            done = future.get(timeout=120)
            print(f"ack {value} {done.partition} {done.offset}")
        except Exception as error:  # whatever the library gave up with
            print(f"err {value} {error!r}")
    producer.close()


def consume(bootstrap, topic, group, count, seconds):
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=10000,
        auto_commit_interval_ms=500,
    )

    def poll():
        for records in consumer.poll(timeout_ms=1000).values():
            for record in records:
                yield record.value, record.partition, record.offset

    common.consume(poll, count, seconds)
    consumer.close()


common.main(produce, consume)
