"""What the Python clients have in common; see ../README.md for what they print."""

import sys
import time


def pace(start, i, rate):
    """Waits until the i-th record of `rate` a second is due; a rate of 0 is as fast as possible."""
    if rate > 0:
        time.sleep(max(0.0, start + i / rate - time.monotonic()))


def consume(poll, count, seconds):
    """Prints what `poll` gives, as (value, partition, offset), until `count` values are seen or nothing new comes."""
    seen = set()
    last = time.monotonic()
    while len(seen) < count and time.monotonic() - last < seconds:
        for value, partition, offset in poll():
            value = value.decode().rstrip()
            print(f"got {value} {partition} {offset}")
            if value not in seen:
                seen.add(value)
                last = time.monotonic()


def main(produce, consume):
    command, bootstrap, topic, third, count, last = sys.argv[1:]
    if command == "produce":
        produce(bootstrap, topic, int(third), int(count), int(last))
    else:
        consume(bootstrap, topic, third, int(count), int(last))
