package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAssess(t *testing.T) {
	tests := []struct {
		name   string
		orders map[string]int
		want   damage
	}{
		{"nothing", nil, damage{sold: 0, oversold: 0, unsold: 3}},
		{"each once", map[string]int{"a": 3, "b": 2, "c": 1}, damage{sold: 3}},
		{"one unit twice", map[string]int{"a": 3, "b": 2, "c": 1, "d": 3}, damage{sold: 4, oversold: 1}},
		{"units that are not there", map[string]int{"a": 3, "b": 2, "c": 1, "d": 4, "e": 0}, damage{sold: 5, oversold: 2}},
		{"one unit three times", map[string]int{"a": 3, "b": 3, "c": 3}, damage{sold: 3, oversold: 2, unsold: 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := assess(3, tt.orders)
			require.Equal(t, tt.want, got)
			require.Equal(t, 3, got.sold-got.oversold+got.unsold)
		})
	}
}

func TestPercentiles(t *testing.T) {
	var waits []int64
	for i := int64(100); i >= 0; i-- {
		waits = append(waits, i*1000)
	}
	p50, p99 := percentiles(waits)
	require.Equal(t, 50*time.Millisecond, p50)
	require.Equal(t, 99*time.Millisecond, p99)
	p50, p99 = percentiles(nil)
	require.Zero(t, p50+p99)
}

// sample is a run as it should be.
func sample() []result {
	return []result{
		{mode: &modes[0], units: 10_000, damage: damage{402_637, 394_546, 1_909}, limit: 5 * time.Second, took: 5 * time.Second},
		{
			mode: &modes[1], units: 10_000, damage: damage{13_305, 3_305, 0}, took: 4 * time.Second,
			p50: 30 * time.Microsecond, p99: 1006 * time.Millisecond,
		},
		{
			mode: &modes[2], units: 10_000, damage: damage{10_000, 0, 0}, took: 2 * time.Second,
			p50: 6240 * time.Microsecond, p99: 632 * time.Millisecond, refused: 1,
		},
		{
			mode: &modes[3], units: 10_000, damage: damage{10_000, 0, 0}, took: time.Second,
			p50: 1240 * time.Microsecond, p99: 12 * time.Millisecond, refused: 20,
		},
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	table(&b, sample())
	require.Equal(t, strings.Join([]string{
		"                                             orders        wait to buy  too late,",
		"                     sold  oversold  unsold   per s      p50       p99    refused",
		"  no lock         402,637   394,546   1,909  80,527        -         -          0",
		"  naive lock       13,305     3,305       0   3,326  0.03 ms  1,006 ms          0",
		"  Holdfast lock    10,000         0       0   5,000  6.24 ms    632 ms          1",
		"  Holdfast stock   10,000         0       0  10,000  1.24 ms     12 ms         20",
		"",
	}, "\n"), b.String())
}

func TestReport_saysWhatWasSeen(t *testing.T) {
	var b bytes.Buffer
	report(&b, sample())
	for line := range strings.Lines(b.String()) {
		require.LessOrEqual(t, len(strings.TrimRight(line, "\n")), 82)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	require.Contains(t, text, "no lock: 402,637 orders for 10,000 units, and 1,909 of them never sold when it was stopped after 5 s.")
	require.Contains(t, text, "naive lock: 13,305 orders for 10,000 units. Nobody renews")
	require.Contains(t, text, "Holdfast lock: 10,000 orders for 10,000 units. The slow")
	require.Contains(t, text, "Holdfast stock: 10,000 orders for 10,000 units. Nobody waits")
}

func TestVerdict_tellsOfASaleThatDidNotEnd(t *testing.T) {
	r := sample()[0]
	r.damage.unsold = 0
	require.Contains(t, r.verdict(), "and some on sale again when it was stopped after 5 s. Buyers")
}

func TestCheck(t *testing.T) {
	require.NoError(t, check(sample()))
	tests := []struct {
		name, want string
		spoil      func(r []result)
	}{
		{"harmless without a lock", "no lock sold no unit twice", func(r []result) { r[0].damage.oversold = 0 }},
		{"harmless naive lock", "naive lock sold no unit twice", func(r []result) { r[1].damage.oversold = 0 }},
		{"oversold", "Holdfast lock sold 1 units too many", func(r []result) { r[2].damage.oversold = 1 }},
		{"unsold", "Holdfast lock left 2 units unsold", func(r []result) { r[2].damage.unsold = 2 }},
		{"too slow", "not sold everything after 30 s", func(r []result) { r[2].limit = modes[2].limit }},
		{"nothing refused", "Holdfast lock refused nothing", func(r []result) { r[2].refused = 0 }},
		{"oversold stock", "Holdfast stock sold 1 units too many", func(r []result) { r[3].damage.oversold = 1 }},
		{"unsold stock", "Holdfast stock left 2 units unsold", func(r []result) { r[3].damage.unsold = 2 }},
		{"no late payment", "Holdfast stock refused nothing", func(r []result) { r[3].refused = 0 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := sample()
			tt.spoil(r)
			require.ErrorContains(t, check(r), tt.want)
		})
	}
}

func TestScreen_linesFitATerminal(t *testing.T) {
	var b bytes.Buffer
	s := newScreen(&b)
	s.terminal = true
	s.say("one suspended") // the longest note
	s.draw("Holdfast stock", 1, now{stock: 10_000, orders: 999_999})
	require.LessOrEqual(t, b.Len()-len("\r"), 79)
	s.draw("naive lock", 0, now{})
	s.clear()
	require.True(t, strings.HasSuffix(b.String(), "\r"))

	b.Reset()
	s = newScreen(&b)
	s.draw("no lock", 0.5, now{})
	require.Empty(t, b.String(), "a line per second where nothing can be drawn over")
}

func TestNumbers(t *testing.T) {
	require.Equal(t, "0", thousands(0))
	require.Equal(t, "999", thousands(999))
	require.Equal(t, "1,000", thousands(1000))
	require.Equal(t, "-123,456", thousands(-123456))
	require.Equal(t, "1,234,567", thousands(1234567))
	require.Equal(t, "-", wait(0))
	require.Equal(t, "9.50 ms", wait(9500*time.Microsecond))
	require.Equal(t, "1,500 ms", wait(1500*time.Millisecond))
	require.Equal(t, "300 ms", span(300*time.Millisecond))
	require.Equal(t, "2.5 s", span(2500*time.Millisecond))
	require.Equal(t, "a b", fill("a\n b", "  "))
}
