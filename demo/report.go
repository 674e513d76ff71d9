package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// damage compares the orders with the stock. Each unit has a number, and each
// order names its unit, so that sold - oversold + unsold is the stock, always.
type damage struct {
	sold     int // orders
	oversold int // orders whose unit another order has too, or that is none of the stock's
	unsold   int // units without an order
}

// assess counts the damage: units is the stock, orders the unit of each order.
func assess(units int, orders orders) damage {
	sold := map[int]bool{}
	for _, unit := range orders {
		if unit >= 1 && unit <= units {
			sold[unit] = true
		}
	}
	return damage{sold: len(orders), oversold: len(orders) - len(sold), unsold: units - len(sold)}
}

// percentiles are the 50th and the 99th of waits in microseconds.
func percentiles(waits []int64) (p50, p99 time.Duration) {
	if len(waits) == 0 {
		return 0, 0
	}
	slices.Sort(waits)
	at := func(share float64) time.Duration {
		return time.Duration(waits[int(share*float64(len(waits)-1))]) * time.Microsecond
	}
	return at(0.50), at(0.99)
}

// check says what went otherwise than the demo claims.
func check(results []result) error {
	var wrong []error
	for _, r := range results {
		d := r.damage
		switch {
		case !r.mode.sound && d.oversold == 0:
			wrong = append(wrong, fmt.Errorf("%s sold no unit twice", r.mode.name))
		case r.mode.sound && d.oversold > 0:
			wrong = append(wrong, fmt.Errorf("%s sold %d units too many", r.mode.name, d.oversold))
		case r.mode.sound && r.limit > 0:
			wrong = append(wrong, fmt.Errorf("%s had not sold everything after %s; is the server far away? Try fewer -units", r.mode.name, span(r.limit)))
		case r.mode.sound && d.unsold > 0:
			wrong = append(wrong, fmt.Errorf("%s left %d units unsold", r.mode.name, d.unsold))
		case r.mode.sound && r.refused == 0:
			wrong = append(wrong, fmt.Errorf("%s refused nothing that came too late", r.mode.name))
		}
	}
	return errors.Join(wrong...)
}

// printf prints; there is nothing to do about a terminal that is gone.
func printf(out io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }

// report prints the table and what it means.
func report(out io.Writer, results []result) {
	table(out, results)
	printf(out, "\n")
	for _, r := range results {
		printf(out, "%s\n", fill(r.mode.name+": "+r.verdict(), "  "))
	}
}

// table prints a row for each sale.
func table(out io.Writer, results []result) {
	const waited = "wait to buy"
	rows := [][]string{
		{"", "", "", "", "orders", waited, "", "too late,"},
		{"", "sold", "oversold", "unsold", "per s", "p50", "p99", "refused"},
	}
	for _, r := range results {
		rows = append(rows, []string{
			r.mode.name,
			thousands(r.damage.sold), thousands(r.damage.oversold), thousands(r.damage.unsold),
			thousands(int(float64(r.damage.sold) / max(r.took.Seconds(), 1e-3))),
			wait(r.p50), wait(r.p99), strconv.Itoa(r.refused),
		})
	}
	const columns = 8
	var width [columns]int
	for _, row := range rows[1:] {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	width[7] = max(width[7], len(rows[0][7]))
	// The one head that spans two columns needs room in both.
	width[5] = max(width[5], len(waited)-2-width[6])
	for _, row := range rows {
		line := fmt.Sprintf("%-*s", width[0], row[0])
		for i := 1; i < columns; i++ {
			room := width[i]
			if row[i] == waited {
				room += 2 + width[i+1]
			} else if i == 6 && row[i] == "" {
				continue // the head before it reaches until here
			}
			line += fmt.Sprintf("  %*s", room, row[i])
		}
		printf(out, "  %s\n", line)
	}
}

// verdict says what one sees in the row, in a sentence or two.
func (r result) verdict() string {
	d := r.damage
	sum := fmt.Sprintf("%s orders for %s units", thousands(d.sold), thousands(r.units))
	switch {
	case r.limit > 0 && d.unsold > 0:
		sum += fmt.Sprintf(", and %s of them never sold when it was stopped after %s", thousands(d.unsold), span(r.limit))
	case r.limit > 0:
		sum += fmt.Sprintf(", and some on sale again when it was stopped after %s", span(r.limit))
	}
	sum += ". " + r.mode.moral
	if r.mode.waits && !r.mode.sound && r.p50 < r.p99/100 {
		sum += " The p50 is low since whoever gives the lock back takes it again before the others ask; they pay in the p99."
	}
	return sum
}

// fill breaks text into lines for a terminal of 80 columns.
func fill(text, indent string) string {
	const width = 79
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column > 0 && column+1+n > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		case column > 0:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// thousands writes n with commas.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// wait writes a time in milliseconds; none is a dash.
func wait(d time.Duration) string {
	if d < 10*time.Microsecond {
		return "-"
	}
	ms := float64(d) / float64(time.Millisecond)
	if ms < 10 {
		return fmt.Sprintf("%.2f ms", ms)
	}
	return thousands(int(ms)) + " ms"
}

// span writes a time that the demo has set, with a space as people do.
func span(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.3g s", d.Seconds())
}

// A screen shows how a sale stands: a bar that moves on a terminal, a line per
// second elsewhere.
type screen struct {
	out      io.Writer
	terminal bool

	mu    sync.Mutex
	note  string
	drawn int // characters on the line
	last  time.Time
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out, last: time.Now()}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return s
}

// say adds a note to the lines that follow.
func (s *screen) say(note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note = note
}

// draw shows the share of the sale that is over.
func (s *screen) draw(name string, share float64, n now) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const width = 12 // the whole line stays below 80 characters, or \r would not reach its start
	full := int(share * width)
	line := fmt.Sprintf("  %-14s [%s%s] %7s orders, %6s in stock  %s", name,
		strings.Repeat("#", full), strings.Repeat(".", width-full), thousands(n.orders), thousands(n.stock), s.note)
	switch {
	case s.terminal:
		printf(s.out, "\r%-*s", s.drawn, line)
		s.drawn = len(line)
	case time.Since(s.last) >= time.Second:
		printf(s.out, "%s\n", strings.TrimRight(line, " "))
		s.last = time.Now()
	}
}

// clear makes room for what comes next.
func (s *screen) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal {
		printf(s.out, "\r%*s\r", s.drawn, "")
	}
}
