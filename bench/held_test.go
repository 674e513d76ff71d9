package bench_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/bench"
)

// heldLease is the same for all: each lock is renewed six times in 20 s, or as often
// as the library thinks right.
const heldLease = 10 * time.Second

// Ten thousand locks are held, and kept alive by whatever the implementation has
// for it.
func BenchmarkHeld(b *testing.B) {
	eachCell(b, bench.Held, func(b *testing.B, lab *bench.Lab, locks int) {
		names := make([]string, locks)
		for i := range names {
			names[i] = "held:" + strconv.Itoa(i)
		}
		holds := make([]bench.Hold, locks)
		ctx := within(b, 5*time.Minute)
		client := lab.Open(b, bench.Env{Lease: heldLease})
		if err := bench.Pairs(ctx, client.Locker("warm"), 20); err != nil {
			b.Fatal(err)
		}
		before := weigh()
		inParallel(locks, func(i int) {
			// Not ctx: a context that can be cancelled is one more thing to hold.
			hold, err := client.Locker(names[i]).Lock(context.Background())
			if err != nil {
				b.Error(err)
			}
			holds[i] = hold
		})
		if b.Failed() {
			return
		}
		time.Sleep(time.Second)

		b.ResetTimer()
		meter := lab.Start(b)
		time.Sleep(window(5 * time.Second))
		meter.Stop()
		b.StopTimer()
		after := weigh()

		b.ReportMetric(float64(meter.Commands)/meter.Elapsed.Seconds(), "cmds/s")
		b.ReportMetric(100*meter.Client.Seconds()/meter.Elapsed.Seconds(), "client-cpu-%")
		b.ReportMetric(100*meter.Server.Seconds()/meter.Elapsed.Seconds(), "server-cpu-%")
		after.report(b, before, locks, "lock")
		inParallel(locks, func(i int) {
			if err := holds[i].Unlock(ctx); err != nil {
				b.Errorf("lock %d was not held to the end: %v", i, err)
			}
		})
	})
}

// inParallel calls f for each number below n, many at once.
func inParallel(n int, f func(int)) {
	const workers = 64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	wg.Wait()
}
