package bench_test

import (
	"context"
	"encoding/json"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/bench"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// holderRole is the process that holds the lock of BenchmarkWaiters.
const holderRole = "holder"

// waitLease is longer than the benchmark, also for libraries without a watchdog.
const waitLease = 60 * time.Second

// A thousand goroutines wait for a lock that another process holds. Measured is
// what waiting costs, after their first tries.
func BenchmarkWaiters(b *testing.B) {
	eachCell(b, bench.Waiters, func(b *testing.B, lab *bench.Lab, waiters int) {
		order, err := json.Marshal(ringOrder{Impl: lab.Impl.Name, Addr: lab.Addr()})
		if err != nil {
			b.Fatal(err)
		}
		redistest.Child(b, holderRole, "HOLDFAST_BENCH="+string(order)).Line("held", 20*time.Second)

		client := lab.Open(b, bench.Env{Lease: waitLease})
		locks := make([]bench.Locker, waiters)
		for i := range locks {
			locks[i] = client.Locker("held")
		}
		if err := bench.Pairs(within(b, time.Minute), client.Locker("free"), 5); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		start := make(chan struct{})
		var ended sync.WaitGroup
		for i, lock := range locks {
			ended.Go(func() {
				if i > 0 {
					<-start
				}
				if _, err := lock.Lock(ctx); err == nil {
					b.Error("a waiter has the lock that another process holds")
				}
			})
		}
		// The first one opens what all share, such as a connection for messages. The
		// callers' own goroutines are there too.
		time.Sleep(500 * time.Millisecond)
		before := weigh()
		began := lab.Wire.Commands()
		close(start)
		time.Sleep(time.Second)
		first := lab.Wire.Commands() - began

		b.ResetTimer()
		meter := lab.Start(b)
		time.Sleep(window(2 * time.Second))
		meter.Stop()
		b.StopTimer()
		after := weigh()
		cancel()
		ended.Wait()

		b.ReportMetric(float64(meter.Commands)/meter.Elapsed.Seconds(), "cmds/s")
		b.ReportMetric(float64(first), "cmds-first-second")
		b.ReportMetric(100*meter.Client.Seconds()/meter.Elapsed.Seconds(), "client-cpu-%")
		b.ReportMetric(100*meter.Server.Seconds()/meter.Elapsed.Seconds(), "server-cpu-%")
		after.report(b, before, waiters-1, "waiter")
	})
}

// holder takes the lock and keeps it until its parent is gone.
func holder() {
	var order ringOrder
	if err := json.Unmarshal([]byte(os.Getenv("HOLDFAST_BENCH")), &order); err != nil {
		panic(err)
	}
	impl, _ := bench.Find(order.Impl)
	client, err := impl.Open(bench.Env{Addr: order.Addr, Wire: &bench.Wire{}, Lease: waitLease})
	if err != nil {
		panic(err)
	}
	hold, err := client.Locker("held").Lock(context.Background())
	if err != nil {
		panic(err)
	}
	redistest.Say("held")
	<-redistest.Listen()
	_ = hold.Unlock(context.Background()) // the server may be gone too
}
