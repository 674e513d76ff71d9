package main

import (
	"io"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/bench"
)

// A batch is what is measured at one time: one cell, or several that leave the
// machine idle.
type batch []job

// A job is a cell and how long it is measured, without its start and end.
type job struct {
	cell   bench.Cell
	window time.Duration
	around time.Duration // about how long start and end take
}

// A plan is one round. The order within it is turned from round to round.
type plan []batch

// quickCells are what -quick measures.
var quickCells = map[string][]int{
	"Uncontended": {1}, "Distinct": {128}, "Contended": {128}, "Handoff": {4}, "Readers": {1000},
	"Stock": {128}, "SoldOut": {128}, "Waiters": {1000}, "Held": {10_000},
}

// busy is the implementation that keeps the machine busy while it waits. -quick leaves
// it out there.
const busy = "redsync-rueidis-1ms"

func makePlan(s settings) plan {
	var p plan
	var idle batch
	for _, w := range bench.Workloads {
		for _, cell := range w.Cells() {
			if s.only != nil && !s.only.MatchString(cell.String()) || s.quick && !slices.Contains(quickCells[w.Name], cell.Value) {
				continue
			}
			if s.quick && cell.Impl.Java {
				continue // a JVM needs its time to get warm
			}
			waits := cell.Workload.Name == "Waiters" || cell.Workload.Name == "Held"
			j := newJob(cell, s.quick)
			switch {
			case waits && cell.Impl.Name != busy:
				idle = append(idle, j)
			case !waits || !s.quick:
				p = append(p, batch{j})
			}
		}
	}
	if len(idle) > 0 {
		p = append(p, idle)
	}
	return p
}

// newJob says how long a cell is measured, and how long it takes besides: its
// processes and servers start and end, and it warms up. That was measured on a slow
// host with two cores; most are done earlier.
func newJob(c bench.Cell, quick bool) job {
	j := job{cell: c, around: 200 * time.Millisecond}
	switch c.Workload.Name {
	case "Uncontended": // run twice, the first time to see how often makes the window
		j.window, j.around = 300*time.Millisecond, 350*time.Millisecond
		if c.Impl.Java { // it is noisier
			j.window = time.Second
		}
	case "Distinct":
		j.window = 300 * time.Millisecond
		if c.Value > 500 {
			j.around = 600 * time.Millisecond
		}
	case "Contended":
		j.window = 500 * time.Millisecond
		if c.Value > 500 { // so that each goroutine has several turns
			j.window = time.Second
		}
	case "Readers":
		j.window, j.around = 300*time.Millisecond, 450*time.Millisecond
	case "Stock", "SoldOut":
		j.window = 300 * time.Millisecond
		if c.Value > 100 { // so that who polls has several turns
			j.window = 500 * time.Millisecond
		}
	case "Handoff":
		j.window, j.around = time.Second, 250*time.Millisecond
		if quick { // some turns of those that poll seldom
			j.window = 700 * time.Millisecond
		}
	case "Waiters":
		j.window, j.around = 5*time.Second, 1500*time.Millisecond
	case "Held":
		j.window, j.around = 20*time.Second, 8*time.Second
		if quick { // two renewals of each lock
			j.window = 7 * time.Second
		}
	}
	switch {
	case c.Impl.Java && c.Workload.Name == "Handoff": // four JVMs
		j.around += 8 * time.Second
	case c.Impl.Java: // the JVM starts, and is warmed up
		j.around += 3300 * time.Millisecond
	case c.Impl.Server != "": // one that writes to the disk
		j.around += 1200 * time.Millisecond
	}
	return j
}

func (p plan) cells() int {
	n := 0
	for _, b := range p {
		n += len(b)
	}
	return n
}

func (b batch) takes() time.Duration {
	var longest time.Duration
	for _, j := range b {
		longest = max(longest, j.window+j.around)
	}
	return longest
}

func (p plan) estimate(rounds int) time.Duration {
	var sum time.Duration
	for _, b := range p {
		sum += b.takes()
	}
	return sum * time.Duration(rounds)
}

func (p plan) print(out io.Writer) {
	for _, b := range p {
		var names []string
		for _, j := range b {
			names = append(names, j.cell.String())
		}
		say(out, "%8v  %s\n", b.takes(), strings.Join(names, " + "))
	}
}

// round returns the plan in the order of a round: the cells of each value of a
// workload forwards or backwards in turn, and each time from another one on, so
// that nobody always comes first, or after the same neighbour.
func (p plan) round(n int) plan {
	var ordered plan
	for from := 0; from < len(p); {
		to := from + 1
		for to < len(p) && same(p[from], p[to]) {
			to++
		}
		group := slices.Clone(p[from:to])
		if n%2 == 1 {
			slices.Reverse(group)
		}
		turn := n * (len(group)/3 + 1) % len(group)
		ordered = append(append(ordered, group[turn:]...), group[:turn]...)
		from = to
	}
	return ordered
}

// same reports whether two batches compare the same thing.
func same(a, b batch) bool {
	x, y := a[0].cell, b[0].cell
	return x.Workload.Name == y.Workload.Name && x.Value == y.Value
}
