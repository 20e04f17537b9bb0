"""The librdkafka (confluent-kafka) client of the end-to-end tests; see ../README.md for what it prints."""

import sys
import time

import common
from confluent_kafka import Consumer, Producer


def produce(bootstrap, topic, first, count, rate):
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "delivery.timeout.ms": 120000,
            "topic.metadata.refresh.interval.ms": 5000,
        }
    )

    def report(value):
        def done(error, message):
            if error is not None:
                print(f"err {value} {error}", flush=rate > 0)
            else:
                print(f"ack {value} {message.partition()} {message.offset()}", flush=rate > 0)

        return done

    start = time.monotonic()
    for i in range(count):
        common.pace(start, i, rate)
        value = first + i
        while True:
            try:
                producer.produce(topic, key=str(value), value=f"{value:<100}", on_delivery=report(value))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(120)


def consume(bootstrap, topic, group, count, seconds):
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10000,
            "auto.commit.interval.ms": 500,
        }
    )
    consumer.subscribe([topic])

    def poll():
        message = consumer.poll(1.0)
        if message is None:
            return
        if message.error() is not None:
            print(f"# {message.error()}", file=sys.stderr)
            return
        yield message.value(), message.partition(), message.offset()

    common.consume(poll, count, seconds)
    consumer.close()


common.main(produce, consume)
