package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-go/holdfast/bench"
)

const ours = "holdfast"

// bestPeer returns the peer with the best median, "" if there is none.
func (r *Run) bestPeer(w bench.Workload, value int, m metric) string {
	best, name := stat{}, ""
	for _, impl := range r.measured(w, value) {
		s := r.stat(w.Name, impl.Name, value, m.unit)
		if impl.Role != bench.Peer || !s.known() {
			continue
		}
		if name == "" || m.better(s.median, best.median) {
			best, name = s, impl.Name
		}
	}
	return name
}

// better reports whether a is better than b.
func (m metric) better(a, b float64) bool {
	if m.higher {
		return a > b
	}
	return a < b
}

// measured returns the implementations that have results, in the order of the
// workload.
func (r *Run) measured(w bench.Workload, value int) []bench.Impl {
	var impls []bench.Impl
	for _, c := range w.Cells() {
		if c.Value == value && r.values[cell{w.Name, c.Impl.Name, value}] != nil {
			impls = append(impls, c.Impl)
		}
	}
	return impls
}

// lead says how many times better we are than a peer: above 1 is better.
func (r *Run) lead(w bench.Workload, value int, m metric, peer string) stat {
	if m.higher {
		return r.ratio(w.Name, ours, peer, value, m.unit)
	}
	return r.ratio(w.Name, peer, ours, value, m.unit)
}

// Summary writes a line for each workload, with tabs between the columns:
// ratio-to-peer is above 1 where Holdfast is better, ratio-to-limit is Holdfast's
// figure over the limit's.
func (r *Run) Summary(out io.Writer) error {
	var b strings.Builder
	b.WriteString("workload\tholdfast\tbest-peer\tpeer-name\tratio-to-peer\tlimit\tratio-to-limit\n")
	for _, s := range sections {
		for _, value := range s.workload.Values {
			for _, m := range s.main {
				r.summarize(&b, s, value, m)
			}
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func (r *Run) summarize(b *strings.Builder, s section, value int, m metric) {
	w := s.workload
	mine := r.stat(w.Name, ours, value, m.unit)
	if !mine.known() {
		return
	}
	best, name, lead, limit, toLimit := "-", "-", "-", "-", "-"
	if peer := r.bestPeer(w, value, m); peer != "" {
		best, name = plain(r.stat(w.Name, peer, value, m.unit).median), peer
		lead = plain(r.lead(w, value, m, peer).median)
	}
	if l := r.stat(w.Name, s.limit, value, m.unit); l.known() {
		limit, toLimit = plain(l.median), plain(r.ratio(w.Name, ours, s.limit, value, m.unit).median)
	}
	fmt.Fprintf(b, "%s/%s=%d (%s)\t%s\t%s\t%s\t%s\t%s\t%s\n",
		strings.ToLower(w.Name), w.Param, value, m.unit, plain(mine.median), best, name, lead, limit, toLimit)
}

// plain writes a number for programs: no separators, no unit.
func plain(v float64) string { return strings.ReplaceAll(number(v), ",", "") }

// Print writes what was measured as a table for a terminal, and what was not and why.
func (r *Run) Print(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var b strings.Builder
	for _, s := range sections {
		for _, value := range s.workload.Values {
			r.printTable(&b, s, value)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	if _, err := io.WriteString(t, b.String()); err != nil {
		return err
	}
	return t.Flush()
}

func (r *Run) printTable(b *strings.Builder, s section, value int) {
	impls := r.measured(s.workload, value)
	if len(impls) == 0 {
		return
	}
	columns := s.columns()
	fmt.Fprintf(b, "\n%s, %s=%d\n", s.title, s.workload.Param, value)
	for _, m := range columns {
		fmt.Fprintf(b, "\t%s", m.title)
	}
	b.WriteString("\n")
	for _, impl := range impls {
		fmt.Fprintf(b, "  %s", impl.Name)
		for _, m := range columns {
			fmt.Fprintf(b, "\t%s", m.format(r.stat(s.workload.Name, impl.Name, value, m.unit).median))
		}
		b.WriteString("\n")
	}
}

func (s section) columns() []metric { return append(append([]metric(nil), s.main...), s.more...) }
