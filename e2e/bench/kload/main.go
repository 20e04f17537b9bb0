// kload: small open/closed-loop load generator for Kafka-wire brokers (franz-go). One JSON line per run.
// Latency in -rate mode counts from the intended send time (no coordinated omission). Broker CPU and RSS are read from
// /proc for whatever local processes listen on the broker ports.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type hist struct{ b [4096]atomic.Int64 }

func (h *hist) add(d time.Duration) {
	us := float64(d.Nanoseconds()) / 1e3
	if us < 1 {
		us = 1
	}
	i := int(math.Log(us) * 100) // 1 % buckets
	if i > 4095 {
		i = 4095
	}
	h.b[i].Add(1)
}
func (h *hist) q(p float64) float64 { // ms
	var n, c int64
	for i := range h.b {
		n += h.b[i].Load()
	}
	for i := range h.b {
		if c += h.b[i].Load(); n > 0 && float64(c) >= p*float64(n) {
			return math.Round(math.Exp(float64(i)/100)) / 1e3
		}
	}
	return -1
}

func pidsOfPorts(ports map[int]bool) (pids []int) {
	inodes := map[string]bool{}
	for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(f)
		for _, l := range strings.Split(string(b), "\n") {
			c := strings.Fields(l)
			if len(c) < 10 || c[3] != "0A" {
				continue
			}
			p, _ := strconv.ParseInt(c[1][strings.LastIndex(c[1], ":")+1:], 16, 32)
			if ports[int(p)] {
				inodes["socket:["+c[9]+"]"] = true
			}
		}
	}
	seen := map[int]bool{}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if l, err := os.Readlink(fd); err == nil && inodes[l] {
			if p, _ := strconv.Atoi(strings.Split(fd, "/")[2]); !seen[p] {
				seen[p] = true
				pids = append(pids, p)
			}
		}
	}
	return
}
func cpuOf(pids []int) (s float64, rssMiB int) {
	for _, p := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if i := strings.LastIndexByte(string(b), ')'); i > 0 {
			f := strings.Fields(string(b[i+1:]))
			u, _ := strconv.ParseFloat(f[11], 64)
			k, _ := strconv.ParseFloat(f[12], 64)
			r, _ := strconv.Atoi(f[21])
			s += (u + k) / 100
			rssMiB += r * os.Getpagesize() / 1048576
		}
	}
	return
}
func busyCPU() (s float64) { // whole machine, s
	b, _ := os.ReadFile("/proc/stat")
	f := strings.Fields(strings.SplitN(string(b), "\n", 2)[0])
	for _, i := range []int{1, 2, 3, 6, 7} {
		v, _ := strconv.ParseFloat(f[i], 64)
		s += v / 100
	}
	return
}
func selfCPU() float64 {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return float64(r.Utime.Sec+r.Stime.Sec) + float64(r.Utime.Usec+r.Stime.Usec)/1e6
}
func die(a ...any) {
	fmt.Fprintln(os.Stderr, a...)
	os.Exit(1)
}

func main() {
	b := flag.String("b", "127.0.0.1:9092", "bootstrap")
	name := flag.String("name", "run", "label")
	np := flag.Int("producers", 1, "")
	nc := flag.Int("consumers", 0, "independent readers of every partition (fan-out)")
	size := flag.Int("size", 1024, "value bytes")
	parts := flag.Int("partitions", 12, "")
	rf := flag.Int("rf", -1, "")
	rate := flag.Float64("rate", 0, "total MB/s to offer, 0 = as fast as acked")
	dur := flag.Duration("dur", 15*time.Second, "measured time")
	warm := flag.Duration("warm", 3*time.Second, "not measured")
	linger := flag.Duration("linger", 5*time.Millisecond, "")
	batch := flag.Int("batch", 1<<20-1024, "max batch bytes")
	buf := flag.Int("buf", 32<<20, "buffered bytes per producer (closed loop depth)")
	acks := flag.Int("acks", -1, "-1 idempotent, 1 or 0 not")
	rnd := flag.Float64("random", 0.25, "random share of the value")
	inflight := flag.Int("inflight", 5, "produce requests in flight; more than 5 need -acks 1 or 0")
	codec := flag.String("codec", "none", "none lz4 zstd")
	flag.Parse()
	ctx := context.Background()
	seeds := kgo.SeedBrokers(strings.Split(*b, ",")...)
	acl, err := kgo.NewClient(seeds)
	if err != nil {
		die(err)
	}
	adm := kadm.NewClient(acl)
	topic := fmt.Sprintf("kload-%d", time.Now().UnixNano()/1e6)
	if r, err := adm.CreateTopic(ctx, int32(*parts), int16(*rf), nil, topic); err != nil {
		die("create", err, r.Err)
	}
	bs, _ := adm.ListBrokers(ctx)
	ports := map[int]bool{}
	for _, x := range bs {
		ports[int(x.Port)] = true
	}
	pids := pidsOfPorts(ports)

	var measuring atomic.Bool
	var sent, sentB, recv, errs atomic.Int64
	var ack, e2e hist
	payload := make([]byte, *size)
	for i := range payload {
		payload[i] = 'a' + byte(i%23)
	}
	rand.Read(payload[8 : 8+int(float64(*size-8)**rnd)])

	stop := make(chan struct{})
	var wg, cwg sync.WaitGroup
	var cls []*kgo.Client
	for range *nc {
		cl, err := kgo.NewClient(seeds, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500*time.Millisecond), kgo.FetchMinBytes(1), kgo.FetchMaxBytes(16<<20), kgo.FetchMaxPartitionBytes(4<<20))
		if err != nil {
			die(err)
		}
		cls = append(cls, cl)
		cwg.Add(1)
		go func() {
			defer cwg.Done()
			for {
				fs := cl.PollFetches(ctx)
				if fs.IsClientClosed() {
					return
				}
				now, m := time.Now().UnixNano(), measuring.Load()
				n := int64(0)
				fs.EachRecord(func(r *kgo.Record) {
					n++
					if m && len(r.Value) >= 8 {
						e2e.add(time.Duration(now - int64(binary.BigEndian.Uint64(r.Value))))
					}
				})
				if m {
					recv.Add(n)
				}
			}
		}()
	}
	if *nc > 0 {
		time.Sleep(time.Second)
	}
	pool := sync.Pool{New: func() any { v := make([]byte, *size); copy(v, payload); return &kgo.Record{Value: v} }}
	for i := range *np {
		o := []kgo.Opt{seeds, kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(*linger), kgo.ProducerBatchMaxBytes(int32(*batch)), kgo.MaxBufferedBytes(*buf), kgo.MaxBufferedRecords(1 << 22), kgo.RecordPartitioner(kgo.UniformBytesPartitioner(64<<10, true, false, nil))}
		switch *codec {
		case "lz4":
			o = append(o, kgo.ProducerBatchCompression(kgo.Lz4Compression()))
		case "zstd":
			o = append(o, kgo.ProducerBatchCompression(kgo.ZstdCompression()))
		default:
			o = append(o, kgo.ProducerBatchCompression(kgo.NoCompression()))
		}
		if *acks != -1 {
			o = append(o, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(*inflight))
			if *acks == 0 {
				o = append(o, kgo.RequiredAcks(kgo.NoAck()))
			} else {
				o = append(o, kgo.RequiredAcks(kgo.LeaderAck()))
			}
		}
		cl, err := kgo.NewClient(o...)
		if err != nil {
			die(err)
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			one := func(at time.Time) {
				r := pool.Get().(*kgo.Record)
				v := r.Value
				*r = kgo.Record{Value: v}
				binary.BigEndian.PutUint64(v, uint64(at.UnixNano()))
				cl.Produce(ctx, r, func(r *kgo.Record, err error) {
					if err != nil {
						errs.Add(1)
					} else if measuring.Load() {
						ack.add(time.Since(at))
						sent.Add(1)
						sentB.Add(int64(len(r.Value)))
					}
					pool.Put(r)
				})
			}
			if *rate == 0 {
				for {
					select {
					case <-stop:
						cl.Flush(ctx)
						cl.Close()
						return
					default:
						for range 64 {
							one(time.Now())
						}
					}
				}
			}
			gap := time.Duration(float64(*size) * float64(*np) / (*rate * 1e6) * 1e9)
			next := time.Now().Add(gap * time.Duration(i) / time.Duration(*np))
			for {
				select {
				case <-stop:
					cl.Flush(ctx)
					cl.Close()
					return
				default:
				}
				if d := time.Until(next); d > 0 {
					time.Sleep(max(d, 500*time.Microsecond))
				}
				for now := time.Now(); !next.After(now); next = next.Add(gap) {
					one(next)
				}
			}
		}()
	}
	time.Sleep(*warm)
	c0, _ := cpuOf(pids)
	b0 := busyCPU()
	me0, t0 := selfCPU(), time.Now()
	measuring.Store(true)
	time.Sleep(*dur)
	measuring.Store(false)
	el := time.Since(t0).Seconds()
	c1, rss := cpuOf(pids)
	me1, b1 := selfCPU(), busyCPU()
	close(stop)
	wg.Wait()
	for _, c := range cls {
		c.Close()
	}
	cwg.Wait()
	adm.DeleteTopic(ctx, topic)
	r2 := func(x float64) float64 { return math.Round(x*100) / 100 }
	mbs := float64(sentB.Load()) / 1e6 / el
	out := map[string]any{"name": *name, "producers": *np, "consumers": *nc, "mb_s": r2(mbs), "rec_s": int(float64(sent.Load()) / el), "errors": errs.Load(),
		"ack_p50_ms": ack.q(.5), "ack_p99_ms": ack.q(.99), "ack_p999_ms": ack.q(.999), "broker_cores": r2((c1 - c0) / el), "client_cores": r2((me1 - me0) / el), "other_cores": r2((b1 - b0 - (c1 - c0) - (me1 - me0)) / el), "broker_rss_mib": rss, "broker_pids": len(pids)}
	if c1 > c0 {
		out["mb_per_broker_cpu_s"] = r2(float64(sentB.Load()) / 1e6 / (c1 - c0))
	}
	if *nc > 0 {
		out["consumed_mb_s"] = r2(float64(recv.Load()) * float64(*size) / 1e6 / el)
		out["e2e_p50_ms"], out["e2e_p99_ms"], out["e2e_p999_ms"] = e2e.q(.5), e2e.q(.99), e2e.q(.999)
	}
	j, _ := json.Marshal(out)
	fmt.Println(string(j))
}
