package bench_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/bench"
)

// contender is one goroutine that wants the lock, and what it got.
type contender struct {
	lock    bench.Locker
	turns   int64
	longest time.Duration // of its waits
	err     error
	_       [64]byte // a cache line of its own
}

// run takes and gives back the lock until ctx ends. The counter is guarded by the
// lock alone.
func (c *contender) run(ctx context.Context, counter *int64) {
	for ctx.Err() == nil {
		began := time.Now()
		hold, err := c.lock.Lock(ctx)
		// The last wait counts as far as it went, or who gets nothing would wait 0.
		c.longest = max(c.longest, time.Since(began))
		if err != nil {
			if ctx.Err() == nil {
				c.err = err
			}
			return
		}
		*counter++
		c.turns++
		if err := hold.Unlock(context.Background()); err != nil {
			c.err = err
			return
		}
	}
}

// Many goroutines of one process want one lock without a pause. They do nothing
// with it: the lock is all the work there is.
func BenchmarkContended(b *testing.B) {
	eachCell(b, bench.Contended, func(b *testing.B, lab *bench.Lab, goroutines int) {
		if lab.Impl.Java {
			redissonContended(b, lab, goroutines)
			return
		}
		client := lab.Open(b, bench.Env{})
		contenders := make([]contender, goroutines)
		for i := range contenders {
			contenders[i].lock = client.Locker("wanted")
		}
		if err := bench.Pairs(within(b, time.Minute), contenders[0].lock, 20); err != nil {
			b.Fatal(err)
		}
		contend(b, lab, contenders)
	})
}

func contend(b *testing.B, lab *bench.Lab, contenders []contender) {
	b.Helper()
	var (
		counter int64
		started atomic.Int64
		start   = make(chan struct{})
		ended   sync.WaitGroup
	)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range contenders {
		ended.Go(func() {
			started.Add(1)
			<-start
			contenders[i].run(ctx, &counter)
		})
	}
	for started.Load() < int64(len(contenders)) {
		time.Sleep(time.Millisecond)
	}
	b.ResetTimer()
	meter := lab.Start(b)
	close(start)
	time.Sleep(window(0))
	cancel()
	ended.Wait()
	meter.Stop()

	turns := make([]int64, len(contenders))
	longest := make([]time.Duration, len(contenders))
	total, starved := int64(0), 0
	for i := range contenders {
		c := &contenders[i]
		if c.err != nil {
			b.Fatal(c.err)
		}
		turns[i], longest[i] = c.turns, c.longest
		total += c.turns
		if c.turns == 0 {
			starved++
		}
	}
	if counter != total {
		b.Fatalf("two had the lock at once: %d turns and a counter of %d", total, counter)
	}
	b.ReportMetric(float64(total)/meter.Elapsed.Seconds(), "acquisitions/s")
	b.ReportMetric(float64(slices.Max(turns))/float64(max(slices.Min(turns), 1)), "max/min")
	b.ReportMetric(100*float64(starved)/float64(len(contenders)), "starved-%")
	b.ReportMetric(float64(quantile(longest, 0.99)), "p99-longest-wait-ns")
	reportCosts(b, meter, total)
}
