package bench

import (
	"fmt"
	"slices"
)

// A Workload is one benchmark: which implementations it measures, with which
// values of its parameter. Its sub-benchmarks are impl=NAME/PARAM=VALUE.
type Workload struct {
	// Name is the benchmark's, without "Benchmark".
	Name   string
	Param  string
	Values []int
	Impls  []string
	// Only are the values of implementations that are not measured with all.
	Only map[string][]int
}

// The workloads.
var (
	// Uncontended takes and gives back a free lock, one goroutine.
	Uncontended = Workload{
		Name: "Uncontended", Param: "cores", Values: []int{1, 2},
		Impls: []string{
			"holdfast", "holdfast-cancellable", "holdfast-fenced", "limit-hash", "limit-string",
			"redsync-goredis", "redsync-rueidis", "redislock", "rueidislock", "rueidislock-1key", "redisson-protocol", "redisson", "etcd",
		},
		Only: map[string][]int{"redisson": {1}}, // each JVM is warmed up, which takes its time
	}
	// Distinct takes and gives back locks of their own in many goroutines.
	Distinct = Workload{
		Name: "Distinct", Param: "goroutines", Values: []int{1, 16, 128, 1024},
		Impls: []string{
			"holdfast", "limit-hash", "limit-string",
			"redsync-goredis", "redsync-rueidis", "redislock", "rueidislock", "rueidislock-1key", "redisson-protocol", "etcd",
		},
	}
	// Contended takes and gives back one lock in many goroutines of a process.
	Contended = Workload{
		Name: "Contended", Param: "goroutines", Values: []int{2, 16, 128, 1000},
		Impls: []string{
			"holdfast", "holdfast-nohandoff", "limit-handoff",
			"redsync-goredis", "redsync-goredis-1ms", "redsync-rueidis", "redsync-rueidis-1ms",
			"redislock", "redislock-1ms", "rueidislock", "rueidislock-1key", "redisson-protocol", "redisson", "etcd",
		},
		Only: map[string][]int{
			"etcd":     {2, 16}, // it makes a session for each goroutine, and collapses
			"redisson": {16},
		},
	}
	// Handoff passes one lock around processes that all wait for it.
	Handoff = Workload{
		Name: "Handoff", Param: "processes", Values: []int{4},
		Impls: []string{
			"holdfast", "limit-grant",
			"redsync-goredis", "redsync-goredis-1ms", "redsync-rueidis", "redsync-rueidis-1ms",
			"redislock", "redislock-1ms", "rueidislock", "rueidislock-1key", "redisson-protocol", "redisson", "etcd",
		},
	}
	// Readers takes and gives back a read lock beside others that read all the time.
	Readers = Workload{
		Name: "Readers", Param: "beside", Values: []int{10, 1000},
		Impls: []string{"holdfast", "limit-reader", "redisson-protocol"},
	}
	// Waiters wait for a lock that another process holds.
	Waiters = Workload{
		Name: "Waiters", Param: "waiters", Values: []int{1000},
		Impls: []string{
			"holdfast", "redsync-rueidis", "redsync-rueidis-1ms", "redislock",
			"rueidislock", "rueidislock-1key", "redisson-protocol", "etcd",
		},
	}
	// Held holds many locks and renews them. Not rueidislock with its defaults: each
	// renewal invalidates its own key, which makes it renew again at once, without end.
	Held = Workload{
		Name: "Held", Param: "locks", Values: []int{10_000},
		Impls: []string{
			"holdfast", "limit-batch", "redsync-rueidis-ticker", "redislock-ticker",
			"rueidislock-1key", "redisson-protocol", "etcd",
		},
	}
	// Stock buys units, each for an order of its own, in many goroutines.
	Stock = Workload{
		Name: "Stock", Param: "goroutines", Values: []int{1, 16, 128, 1024},
		Impls: []string{"holdfast", "limit-reserve", "redsync-goredis", "redsync-rueidis-1ms"},
	}
	// SoldOut wants units that are sold.
	SoldOut = Workload{
		Name: "SoldOut", Param: "goroutines", Values: []int{128},
		Impls: []string{"holdfast", "limit-reserve", "redsync-goredis"},
	}
	// Workloads are all of them, in the order of the report.
	Workloads = []Workload{Uncontended, Distinct, Contended, Handoff, Readers, Stock, SoldOut, Waiters, Held}
)

// Has reports whether impl is measured with that value.
func (w Workload) Has(impl string, value int) bool {
	values, some := w.Only[impl]
	if !some {
		values = w.Values
	}
	return slices.Contains(w.Impls, impl) && slices.Contains(values, value)
}

// A Cell is one measurement: one implementation in one workload.
type Cell struct {
	Workload Workload
	Impl     Impl
	Value    int
}

// Cells returns the measurements of a workload, in the order of values and then
// implementations.
func (w Workload) Cells() []Cell {
	var cells []Cell
	for _, value := range w.Values {
		for _, name := range w.Impls {
			impl, ok := Find(name)
			if !ok {
				panic("bench: no implementation " + name)
			}
			if w.Has(name, value) {
				cells = append(cells, Cell{w, impl, value})
			}
		}
	}
	return cells
}

// Pattern selects the cell with -test.bench.
func (c Cell) Pattern() string {
	return fmt.Sprintf("^Benchmark%s$/^impl=%s$/^%s=%d$", c.Workload.Name, c.Impl.Name, c.Workload.Param, c.Value)
}

// String is the name of the cell's benchmark.
func (c Cell) String() string {
	return fmt.Sprintf("%s/impl=%s/%s=%d", c.Workload.Name, c.Impl.Name, c.Workload.Param, c.Value)
}
