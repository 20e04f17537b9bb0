// The franz-go client of the end-to-end tests; see ../README.md for what it prints.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if len(os.Args) != 7 {
		fmt.Fprintln(os.Stderr, "usage: client produce BOOTSTRAP TOPIC FIRST COUNT RATE | consume BOOTSTRAP TOPIC GROUP COUNT SECONDS")
		os.Exit(2)
	}
	var err error
	if os.Args[1] == "produce" {
		err = produce(os.Args[2], os.Args[3], number(os.Args[4]), number(os.Args[5]), number(os.Args[6]))
	} else {
		err = consume(os.Args[2], os.Args[3], os.Args[4], number(os.Args[5]), number(os.Args[6]))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return n
}

func produce(bootstrap, topic string, first, count, rate int) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.DefaultProduceTopic(topic),
		kgo.AllowAutoTopicCreation(),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(5*time.Millisecond),
		kgo.RecordDeliveryTimeout(2*time.Minute),
		kgo.MetadataMinAge(250*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var lock sync.Mutex
	start := time.Now()
	for i := range count {
		if rate > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		}
		value := first + i
		record := &kgo.Record{Key: []byte(strconv.Itoa(value)), Value: fmt.Appendf(nil, "%-100d", value)}
		client.Produce(context.Background(), record, func(r *kgo.Record, err error) {
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				fmt.Fprintf(out, "err %d %v\n", value, err)
			} else {
				fmt.Fprintf(out, "ack %d %d %d\n", value, r.Partition, r.Offset)
			}
			if rate > 0 {
				out.Flush()
			}
		})
	}
	return client.Flush(context.Background())
}

func consume(bootstrap, topic, group string, count, seconds int) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(group),
		// The one that all libraries know: they may meet in a group.
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(10*time.Second),
		kgo.AutoCommitInterval(500*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	seen := make(map[string]bool)
	last := time.Now()
	for len(seen) < count && time.Since(last) < time.Duration(seconds)*time.Second {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		fetches := client.PollFetches(ctx)
		cancel()
		fetches.EachRecord(func(r *kgo.Record) {
			value := strings.TrimRight(string(r.Value), " ")
			fmt.Fprintf(out, "got %s %d %d\n", value, r.Partition, r.Offset)
			if !seen[value] {
				seen[value] = true
				last = time.Now()
			}
		})
		out.Flush()
	}
	return client.CommitUncommittedOffsets(context.Background())
}
