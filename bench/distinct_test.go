package bench_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/bench"
)

// Many goroutines of one process take and give back a lock each, which nobody
// else wants: how much a process and a server can do.
func BenchmarkDistinct(b *testing.B) {
	eachCell(b, bench.Distinct, func(b *testing.B, lab *bench.Lab, goroutines int) {
		ctx := context.Background()
		client := lab.Open(b, bench.Env{})
		var (
			stop        atomic.Bool
			pairs       atomic.Int64
			start       = make(chan struct{})
			warm, ended sync.WaitGroup
		)
		for i := range goroutines {
			lock := client.Locker("lock:" + strconv.Itoa(i))
			warm.Add(1)
			ended.Go(func() {
				// Together enough for connections and stacks; some take a second for 10,000.
				err := bench.Pairs(ctx, lock, max(2, min(20, 2048/goroutines)))
				warm.Done()
				<-start
				n := int64(0)
				for ; err == nil && !stop.Load(); n++ {
					err = bench.Pairs(ctx, lock, 1)
				}
				pairs.Add(n)
				if err != nil {
					b.Error(err)
				}
			})
		}
		warm.Wait()
		b.ResetTimer()
		meter := lab.Start(b)
		close(start)
		time.Sleep(window(0))
		stop.Store(true)
		ended.Wait()
		meter.Stop()
		b.ReportMetric(float64(pairs.Load())/meter.Elapsed.Seconds(), "pairs/s")
		reportCosts(b, meter, pairs.Load())
	})
}
