package bench_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/bench"
)

// One goroutine takes a free lock and gives it back, again and again. cores=1
// puts client and server on one core, where nothing overlaps and each instruction
// of either shows; cores=2 gives each a core of its own.
func BenchmarkUncontended(b *testing.B) {
	eachCell(b, bench.Uncontended, func(b *testing.B, lab *bench.Lab, cores int) {
		if lab.Impl.Java {
			redissonUncontended(b, lab, cores)
			return
		}
		ctx := context.Background()
		lock := lab.Open(b, bench.Env{}).Locker("free")
		if err := bench.Pairs(ctx, lock, 500); err != nil {
			b.Fatal(err)
		}
		lab.Pin(b, cores)
		if err := bench.Pairs(ctx, lock, 100); err != nil {
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
		reportLatencies(b, latencies)
		reportCosts(b, meter, latencies.TotalCount())
	})
}
