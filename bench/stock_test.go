package bench_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/bench"
)

// settle is how long buyers buy before it is measured.
const settle = 100 * time.Millisecond

// Many goroutines of one process buy a unit each, again and again, from a stock
// that never ends. Each purchase is an order of its own.
func BenchmarkStock(b *testing.B) {
	eachCell(b, bench.Stock, func(b *testing.B, lab *bench.Lab, goroutines int) {
		const units = 1_000_000_000
		goods := goodsOf(b, lab, units)
		t := trade(b, lab, goods, goroutines, nil)
		left, err := goods.Left(within(b, time.Minute))
		if err != nil {
			b.Fatal(err)
		}
		// The last purchase of a goroutine was cut off, and may have been done.
		if sold := units - left; sold < t.all || sold > t.all+int64(goroutines) {
			b.Fatalf("%d units are sold, and %d goroutines have bought %d", sold, goroutines, t.all)
		}
		b.ReportMetric(float64(t.n)/t.meter.Elapsed.Seconds(), "purchases/s")
		b.ReportMetric(100*float64(t.idle)/float64(goroutines), "starved-%")
		reportCosts(b, t.meter, t.n)
	})
}

// Many goroutines of one process want a unit of a stock that is sold out.
func BenchmarkSoldOut(b *testing.B) {
	eachCell(b, bench.SoldOut, func(b *testing.B, lab *bench.Lab, goroutines int) {
		goods := goodsOf(b, lab, 1)
		if err := goods.Buyer().Buy(within(b, time.Minute), "the last one"); err != nil {
			b.Fatal(err)
		}
		t := trade(b, lab, goods, goroutines, bench.ErrSoldOut)
		b.ReportMetric(float64(t.n)/t.meter.Elapsed.Seconds(), "refusals/s")
		reportCosts(b, t.meter, t.n)
	})
}

// goodsOf opens the implementation and puts units on sale.
func goodsOf(tb testing.TB, lab *bench.Lab, units int64) bench.Goods {
	tb.Helper()
	goods, err := lab.Open(tb, bench.Env{}).(bench.Seller).Stock(within(tb, time.Minute), "sale", units)
	if err != nil {
		tb.Fatal(err)
	}
	return goods
}

// traded is what came of a trade.
type traded struct {
	meter *bench.Meter
	n     int64 // purchases in the measured time
	all   int64 // and before and after it, too
	idle  int   // goroutines without any in the measured time
}

// tally counts for one goroutine.
type tally struct {
	n atomic.Int64
	_ [56]byte // a cache line of its own
}

// trade lets goroutines buy without a pause, each time to be answered with want.
func trade(b *testing.B, lab *bench.Lab, goods bench.Goods, goroutines int, want error) (t traded) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var ended sync.WaitGroup
	tallies := make([]tally, goroutines)
	for i := range tallies {
		buyer := goods.Buyer()
		ended.Go(func() {
			orders := "order-" + strconv.Itoa(i) + "-"
			for n := 0; ctx.Err() == nil; n++ {
				err := buyer.Buy(ctx, orders+strconv.Itoa(n))
				switch {
				case errors.Is(err, want):
					tallies[i].n.Add(1)
				case ctx.Err() == nil:
					b.Errorf("a purchase says %v, not %v", err, want)
					return
				}
			}
		})
	}
	time.Sleep(settle)
	before := make([]int64, goroutines)
	t.meter = lab.Start(b)
	for i := range tallies {
		before[i] = tallies[i].n.Load()
	}
	time.Sleep(window(0))
	for i := range tallies {
		n := tallies[i].n.Load() - before[i]
		if t.n += n; n == 0 {
			t.idle++
		}
	}
	t.meter.Stop()
	cancel()
	ended.Wait()
	for i := range tallies {
		t.all += tallies[i].n.Load()
	}
	if t.n == 0 {
		b.Fatal("nothing was bought")
	}
	return t
}
