package bench_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/bench"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

const (
	ringRole = "ring"
	// hold is how long a process keeps the lock: long enough that the others all
	// wait, the last owner included.
	hold = 4 * time.Millisecond
	// settled is how many handoffs are left out at the start.
	settled = 4
)

// ringOrder is what a process of the ring is told.
type ringOrder struct {
	Impl, Addr, Turns string
	Index, Processes  int
	Window            time.Duration
}

// turn is one stay of the lock in a process, in nanoseconds of the wall clock,
// which all processes of a machine share.
type turn struct{ Locked, Unlock int64 }

// ringResult is what it found.
type ringResult struct {
	Turns    []turn
	Commands int64 // from the end of the first turn to that of the last one
	Error    string
}

// Four processes with one caller each want one lock. A process that had it does
// not ask again before another one has it, so each Unlock hands the lock to
// another process; without that rule a library that polls would be measured while
// one process takes its own lock again and again. The latency is from the start of
// Unlock to the return of the next Lock.
func BenchmarkHandoff(b *testing.B) {
	eachCell(b, bench.Handoff, func(b *testing.B, lab *bench.Lab, processes int) {
		turns := filepath.Join(b.TempDir(), "turns")
		span := window(500 * time.Millisecond)
		if lab.Impl.Java {
			redissonHandoff(b, lab, processes, turns, span)
			return
		}
		children := make([]*redistest.Process, processes)
		for i := range children {
			order, err := json.Marshal(ringOrder{
				Impl: lab.Impl.Name, Addr: lab.Addr(), Turns: turns,
				Index: i, Processes: processes, Window: span,
			})
			if err != nil {
				b.Fatal(err)
			}
			children[i] = redistest.Child(b, ringRole, "HOLDFAST_BENCH="+string(order))
		}
		for _, c := range children {
			c.Line("ready", 20*time.Second)
		}
		b.ResetTimer()
		meter := lab.Start(b)
		for _, c := range children {
			c.Send("go")
		}
		var all []turn
		commands, counted := int64(0), 0
		for _, c := range children {
			var r ringResult
			if err := json.Unmarshal([]byte(c.Line("result ", span+30*time.Second)), &r); err != nil {
				b.Fatal(err)
			}
			if r.Error != "" {
				b.Fatal(r.Error)
			}
			all = append(all, r.Turns...)
			commands += r.Commands
			counted += max(len(r.Turns)-1, 0)
		}
		meter.Stop()
		reportHandoffs(b, meter, all)
		b.ReportMetric(float64(commands)/float64(max(counted, 1)), "cmds/handoff")
	})
}

func reportHandoffs(b *testing.B, meter *bench.Meter, turns []turn) {
	b.Helper()
	slices.SortFunc(turns, func(x, y turn) int { return int(x.Locked - y.Locked) })
	latencies := newLatencies()
	for i := settled; i < len(turns); i++ {
		took := turns[i].Locked - turns[i-1].Unlock
		if took <= 0 {
			b.Fatalf("two had the lock at once: locked %d ns before the unlock", -took)
		}
		_ = latencies.RecordValue(took)
	}
	if latencies.TotalCount() == 0 {
		b.Fatalf("only %d turns", len(turns))
	}
	n := float64(len(turns))
	reportLatencies(b, latencies)
	b.ReportMetric(float64(latencies.ValueAtQuantile(50)), "ns/op")
	b.ReportMetric(float64(meter.Server)/n, "server-cpu-ns/op")
	b.ReportMetric(n/meter.Elapsed.Seconds(), "handoffs/s")
}

// ring is a process of the ring.
func ring() {
	var order ringOrder
	if err := json.Unmarshal([]byte(os.Getenv("HOLDFAST_BENCH")), &order); err != nil {
		panic(err)
	}
	var result ringResult
	if err := order.run(&result); err != nil {
		result.Error = err.Error()
	}
	text, err := json.Marshal(result)
	if err != nil {
		panic(err)
	}
	redistest.Say("result %s", text)
	<-redistest.Listen() // until the parent has read it
}

func (o ringOrder) run(result *ringResult) error {
	impl, ok := bench.Find(o.Impl)
	if !ok {
		return fmt.Errorf("no implementation %q", o.Impl)
	}
	turns, err := bench.SharedCounter(o.Turns)
	if err != nil {
		return err
	}
	wire := &bench.Wire{}
	client, err := impl.Open(bench.Env{Addr: o.Addr, Wire: wire, Index: o.Index, Processes: o.Processes})
	if err != nil {
		return err
	}
	defer client.Close()
	if !strings.HasPrefix(o.Impl, "limit-") { // a limit has no lock but the one of the ring
		if err := bench.Pairs(context.Background(), client.Locker("warm:"+strconv.Itoa(o.Index)), 5); err != nil {
			return err
		}
	}
	lock := client.Locker("ring")
	redistest.Say("ready")
	<-redistest.Listen()

	ctx, cancel := context.WithTimeout(context.Background(), o.Window)
	defer cancel()
	first := int64(0)
	for ctx.Err() == nil {
		held, err := lock.Lock(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		locked := time.Now().UnixNano()
		mine := turns.Add(1)
		time.Sleep(hold)
		unlock := time.Now().UnixNano()
		if err := held.Unlock(context.Background()); err != nil {
			return err
		}
		if result.Turns = append(result.Turns, turn{locked, unlock}); len(result.Turns) == 1 {
			first = wire.Commands()
		}
		result.Commands = wire.Commands() - first
		for turns.Load() == mine && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}
