package bench_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/bench"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// crowdRole is the process whose readers are there all the time.
const crowdRole = "crowd"

// crowdOrder is what it is told.
type crowdOrder struct {
	Impl, Addr string
	Readers    int
}

// One goroutine takes a read lock and gives it back, again and again, while others
// read all the time, each an owner of its own in Redis. They are in another process,
// which renews their holds. The cores are those of Uncontended with cores=2.
func BenchmarkReaders(b *testing.B) {
	eachCell(b, bench.Readers, func(b *testing.B, lab *bench.Lab, beside int) {
		order, err := json.Marshal(crowdOrder{Impl: lab.Impl.Name, Addr: lab.Addr(), Readers: beside})
		if err != nil {
			b.Fatal(err)
		}
		redistest.Child(b, crowdRole, "HOLDFAST_BENCH="+string(order)).Line("reading", 20*time.Second)
		present := func() {
			b.Helper()
			if n, want := lab.Redis(b, "HLEN", "read"), strconv.Itoa(beside+1); n != want {
				b.Fatalf("the lock has %s fields, not %s: the mode and each reader", n, want)
			}
		}
		present()

		ctx := context.Background()
		lock := reader(b, lab.Open(b, bench.Env{Lease: waitLease}), "read")
		if err := bench.Pairs(ctx, lock, 200); err != nil {
			b.Fatal(err)
		}
		lab.Pin(b, 2)
		if err := bench.Pairs(ctx, lock, 50); err != nil {
			b.Fatal(err)
		}
		latencies := newLatencies()
		b.ReportAllocs()
		meter := lab.Start(b)
		for b.Loop() {
			began := time.Now()
			hold, err := lock.Lock(ctx)
			if err != nil {
				b.Fatal(err)
			}
			if err := hold.Unlock(ctx); err != nil {
				b.Fatal(err)
			}
			_ = latencies.RecordValue(int64(time.Since(began)))
		}
		meter.Stop()
		present()
		reportLatencies(b, latencies)
		reportCosts(b, meter, latencies.TotalCount())
	})
}

// reader returns a new handle of the read side of a lock.
func reader(tb testing.TB, c bench.Client, name string) bench.Locker {
	tb.Helper()
	lock, err := c.(bench.ReadLocker).Reader(name)
	if err != nil {
		tb.Fatal(err)
	}
	return lock
}

// crowd reads until its parent is gone. Its readers come one after another, so that
// none waits and none shares its owner with another one.
func crowd() {
	var order crowdOrder
	if err := json.Unmarshal([]byte(os.Getenv("HOLDFAST_BENCH")), &order); err != nil {
		panic(err)
	}
	impl, _ := bench.Find(order.Impl)
	client, err := impl.Open(bench.Env{Addr: order.Addr, Wire: &bench.Wire{}, Lease: waitLease})
	if err != nil {
		panic(err)
	}
	for i := range order.Readers {
		lock, err := client.(bench.ReadLocker).Reader("read")
		if err != nil {
			panic(err)
		}
		if _, err := lock.Lock(context.Background()); err != nil {
			panic(fmt.Errorf("reader %d: %w", i, err))
		}
	}
	redistest.Say("reading")
	<-redistest.Listen()
}
