package bench_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/holdfast-go/holdfast/bench"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestMain(m *testing.M) {
	switch redistest.Role() {
	case ringRole:
		ring()
	case crowdRole:
		crowd()
	case holderRole:
		holder()
	default:
		os.Exit(m.Run())
	}
}

// eachCell runs one benchmark for each cell of a workload.
func eachCell(b *testing.B, w bench.Workload, measure func(*testing.B, *bench.Lab, int)) {
	b.Helper()
	for _, name := range w.Impls {
		b.Run("impl="+name, func(b *testing.B) {
			for _, cell := range w.Cells() {
				if cell.Impl.Name == name {
					b.Run(fmt.Sprintf("%s=%d", w.Param, cell.Value), func(b *testing.B) {
						measure(b, bench.NewLab(b, cell.Impl), cell.Value)
					})
				}
			}
		})
	}
}

// window returns how long a benchmark measures that counts what happens in a
// given time: -benchtime, or a second if that is a number of iterations, but at
// least as given. Go runs a benchmark again as long as it was shorter than
// -benchtime, so it runs these once.
func window(atLeast time.Duration) time.Duration {
	benchtime := flag.Lookup("test.benchtime").Value.String()
	d, err := time.ParseDuration(benchtime)
	if err != nil {
		d = time.Second
	}
	return max(d, atLeast)
}

// newLatencies returns a histogram of nanoseconds, of three digits, up to a
// minute.
func newLatencies() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(time.Minute), 3) }

func reportLatencies(b *testing.B, h *hdrhistogram.Histogram) {
	b.Helper()
	b.ReportMetric(float64(h.ValueAtQuantile(50)), "p50-ns")
	b.ReportMetric(float64(h.ValueAtQuantile(99)), "p99-ns")
}

// reportCosts reports what each of n operations has cost.
func reportCosts(b *testing.B, m *bench.Meter, n int64) {
	b.Helper()
	b.ReportMetric(float64(m.Elapsed)/float64(n), "ns/op")
	b.ReportMetric(float64(m.Client)/float64(n), "client-cpu-ns/op")
	b.ReportMetric(float64(m.Server)/float64(n), "server-cpu-ns/op")
	b.ReportMetric(float64(m.Commands)/float64(n), "cmds/op")
}

// footprint is what a process has in memory and running.
type footprint struct {
	heap, stacks uint64
	goroutines   int
}

// weigh collects garbage first: twice, for what finalizers and pools let go of.
func weigh() footprint {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{m.HeapAlloc, m.StackInuse, runtime.NumGoroutine()}
}

// report reports what each of n things adds to before.
func (f footprint) report(b *testing.B, before footprint, n int, thing string) {
	b.Helper()
	each := func(now, then uint64) float64 { return float64(int64(now)-int64(then)) / float64(n) }
	heap, stacks := each(f.heap, before.heap), each(f.stacks, before.stacks)
	b.ReportMetric(heap+stacks, "B/"+thing)
	b.ReportMetric(stacks, "stack-B/"+thing)
	b.ReportMetric(float64(f.goroutines-before.goroutines)/float64(n), "goroutines/"+thing)
}

// within returns a context for what must not hang. It has a deadline, and can be
// cancelled, as most contexts in production.
func within(tb testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	tb.Cleanup(cancel)
	return ctx
}

// quantile returns the q-th of the values, 0 ≤ q ≤ 1.
func quantile(values []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
